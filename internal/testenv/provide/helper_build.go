package provide

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// helperVariable names the built container helper to child processes.
const helperVariable = "WARREN_CONTAINER_HELPER"

// helperProgram returns the built container helper: the one a parent process has, or one in the user's cache that was
// built from the sources as they are, or a new one there.
func helperProgram() (string, error) {
	if path := os.Getenv(helperVariable); path != "" {
		return path, nil
	}
	source, err := helperSource()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "warren-testenv")
	hash, err := sourceHash(source)
	if err != nil {
		return "", err
	}
	program := filepath.Join(cache, "container-"+hash)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := buildHelper(source, cache, program); err != nil {
		return "", fmt.Errorf("build the container helper: %w", err)
	}
	return program, nil
}

// helperSource returns the folder of the helper's module, which lies beside this file's.
func helperSource() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(file), "..", "container")
	if _, err := os.Stat(filepath.Join(source, "go.mod")); !ok || err != nil {
		return "", errors.New("the container helper's sources are not where this program was built; " +
			helperVariable + " can name a built one")
	}
	return source, nil
}

// sourceHash tells whether a built helper is of these sources and this Go version.
func sourceHash(source string) (string, error) {
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	files = append(files, filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum"))
	slices.Sort(files)
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version())
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, filepath.Base(name), len(content))
		hash.Write(content)
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8]), nil
}

// buildHelper builds aside and renames, since several test binaries may do the same at the same time, and deletes what
// was built from other sources and has not been used to for a day.
func buildHelper(source, cache, program string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, "container")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", built, ".")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := os.Rename(built, program); err != nil {
		return err
	}
	removeOld(cache, program)
	return nil
}

func removeOld(cache, keep string) {
	old, _ := filepath.Glob(filepath.Join(cache, "*-*"))
	for _, name := range old {
		if info, err := os.Stat(name); err == nil && name != keep && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(name)
		}
	}
}
