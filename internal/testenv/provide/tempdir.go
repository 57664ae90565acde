//go:build unix

package provide

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	tempPrefix = "warren-testenv-"
	lockName   = "lock"
)

// tempDir is a temporary directory that is known to be in use for as long as this process lives, by a lock on a file
// in it, so that what a killed process left behind can be told from what another one still needs.
type tempDir struct {
	path string
	lock *os.File
}

// newTempDir makes a directory, and first removes those whose owners died.
func newTempDir() (*tempDir, error) {
	removeOrphans()
	path, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return &tempDir{path: path, lock: lock}, nil
}

// write puts a file into the directory and returns its path.
func (d *tempDir) write(name, content string) (string, error) {
	path := filepath.Join(d.path, name)
	return path, os.WriteFile(path, []byte(content), 0o600)
}

// remove deletes the directory and all in it.
func (d *tempDir) remove() error {
	defer d.lock.Close()
	return os.RemoveAll(d.path)
}

// removeOrphans deletes the directories nobody holds the lock of. One without a lock file is just being made, or not
// ours: it stays.
func removeOrphans() {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*", lockName))
	for _, name := range locks {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		// A lock file is created and locked in two steps; a young one may be between them.
		if info, err := lock.Stat(); err == nil && !isYoung(info) && syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		lock.Close()
	}
}

// isYoung reports whether the file was made within the last minute.
func isYoung(info os.FileInfo) bool { return time.Since(info.ModTime()) < time.Minute }
