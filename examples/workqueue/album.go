package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// album is the pictures to do and what became of them. A message carries the number of a picture and nothing else: which
// file that is, and where its thumbnails go, this program knows by itself and takes from nobody.
type album struct {
	paths []string
	out   string
	log   io.Writer

	mu       sync.Mutex
	outcomes map[int]error // of the pictures that are settled: nil when done
	settled  chan struct{} // closed when all are
}

// task is the message.
type task struct {
	ID int
}

// newAlbum finds the pictures in the given files and folders and makes the folder for the thumbnails.
func newAlbum(args []string, out string) (*album, error) {
	var paths []string
	for _, arg := range args {
		found, err := find(arg)
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		return nil, errors.New("no pictures there")
	}
	var err error
	if out == "" {
		out, err = os.MkdirTemp("", "thumbnails-")
	} else {
		err = os.MkdirAll(out, 0o755)
	}
	return &album{paths: paths, out: out, log: os.Stdout, outcomes: map[int]error{}, settled: make(chan struct{})}, err
}

// find returns arg itself, or the pictures in the folder arg and those below.
func find(arg string) (paths []string, err error) {
	info, err := os.Stat(arg)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return []string{arg}, nil
	case !info.IsDir():
		return nil, fmt.Errorf("%q is neither a file nor a folder", arg) // a pipe could be read for ever
	}
	err = filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && slices.Contains([]string{".jpg", ".jpeg", ".png"}, strings.ToLower(filepath.Ext(path))) {
			paths = append(paths, path)
		}
		return err
	})
	return paths, err
}

// handle does one picture. It may be called again for one that is done, after a lost connection: then the same files are
// written once more.
func (a *album) handle(ctx context.Context, img task) (err error) {
	if img.ID < 0 || img.ID >= len(a.paths) {
		return fmt.Errorf("there is no picture %d", img.ID)
	}
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic while decoding: %v", p)
		}
		if !errors.Is(ctx.Err(), context.Canceled) { // else the broker gives the message to another worker, whatever this one says
			a.note(img.ID, err, time.Since(start))
		}
	}()
	return makeThumbnails(ctx, img.ID, a.paths[img.ID], a.out)
}

// note keeps and prints what became of a picture. Names of files and texts of errors are quoted: they may hold anything.
func (a *album) note(id int, err error, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, again := a.outcomes[id]
	a.outcomes[id] = err
	line := fmt.Sprintf("[%d/%d] %q", len(a.outcomes), len(a.paths), a.paths[id])
	switch {
	case err != nil:
		line += fmt.Sprintf(": FAILED: %q", err)
	case again:
		line += ": done again: it came once more, after a lost connection"
	default:
		line += fmt.Sprintf(": done in %v", took.Round(time.Millisecond))
	}
	fmt.Fprintln(a.log, line)
	if !again && len(a.outcomes) == len(a.paths) {
		close(a.settled)
	}
}

// counts returns how many pictures are done, and the reasons of those that failed.
func (a *album) counts() (done int, failed map[int]error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	failed = map[int]error{}
	for id, err := range a.outcomes {
		if err != nil {
			failed[id] = err
		}
	}
	return len(a.outcomes) - len(failed), failed
}
