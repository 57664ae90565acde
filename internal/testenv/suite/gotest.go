package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// logDir is where the whole output of the last run is kept, for looking closer at a failure.
const logDir = ".build"

// stopTime is what tests get to end after an interrupt, before they are killed.
const stopTime = 10 * time.Second

// goTest runs go test and takes in what it reports. A failed test is no error here, it is counted.
func (s *suite) goTest(ctx context.Context, command []string, env *provide.Env, where string) error {
	cmd := exec.Command("go", command...)
	cmd.Env = s.environ(env.Environ())
	if env.Kind != provide.Container && slices.Contains(s.passes, provide.Container) {
		cmd.Env = append(cmd.Env, provide.ContainersToo+"=1")
	}
	ownGroup(cmd) // so that an interrupt from the terminal comes from us alone, and reaches all
	cmd.Stderr = os.Stderr
	if s.job.plain {
		cmd.Stdout = os.Stdout
		err := runUntil(ctx, cmd, func() error { return nil })
		s.total.ranPlain(err)
		return nil
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := createLog(env.Kind)
	if err != nil {
		return err
	}
	defer log.Close()
	c := newCollector(os.Stdout, s.total, env.Kind, where, log.Name())
	for what, rawURL := range map[string]string{"AMQP_URL": env.AMQPURL, "DATABASE_URL": env.DatabaseURL} {
		if !c.secrets.Watch(rawURL) {
			fmt.Printf("the password of %s is not looked for in the output: it has none or a short one\n", what)
		}
	}
	failed := s.total.failed
	done, watching := make(chan struct{}), make(chan struct{})
	go func() { defer close(watching); c.watch(done) }()
	err = runUntil(ctx, cmd, func() error { return c.read(io.TeeReader(stdout, log)) })
	close(done)
	<-watching
	c.nameRunning(0) // where it was interrupted
	var exit *exec.ExitError
	if errors.As(err, &exit) && (s.total.failed > failed || ctx.Err() != nil) {
		return nil // counted already
	}
	return err
}

func createLog(kind provide.Kind) (*os.File, error) {
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(logDir, fmt.Sprintf("test-%s.json", kind)))
}

// runUntil runs cmd, with read taking its output to the end, until it ends; when ctx ends first it interrupts the
// process group, and kills what is left of it after stopTime.
func runUntil(ctx context.Context, cmd *exec.Cmd, read func() error) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-done:
			return
		case <-ctx.Done():
			interruptGroup(cmd)
		}
		select {
		case <-done:
		case <-time.After(stopTime):
			killGroup(cmd)
		}
	}()
	readErr := read()
	if readErr != nil {
		killGroup(cmd) // nobody takes what it writes
	}
	err := cmd.Wait()
	close(done)
	<-watching
	return errors.Join(readErr, err)
}
