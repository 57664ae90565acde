package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// runTime bounds the process of a run.
const runTime = 2 * time.Minute

// childArg makes this program one run, whose spec comes on standard input and whose figures go to standard output.
const childArg = "child"

func child(ctx context.Context) error {
	var s spec
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return err
	}
	f, err := s.run(ctx)
	if err != nil {
		return fmt.Errorf("%s %s: %w", s.Side, s.Path, err)
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}

// process is a run in a process of its own.
func process(ctx context.Context, s spec) (f figures, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runTime, fmt.Errorf("not done in %v", runTime))
	defer cancel()
	cmd, told, err := command(ctx, s)
	if err != nil {
		return f, err
	}
	cmd.Stdin = bytes.NewReader(told)
	said, err := cmd.Output()
	if err != nil && ctx.Err() != nil { // so it was killed: not its fault
		return f, fmt.Errorf("%s: %w", s.Side, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return f, fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err == nil {
		err = json.Unmarshal(said, &f)
	}
	return f, err
}

// server is a process that runs serve until the returned function is called.
func server(ctx context.Context, s spec) (stop func() error, err error) {
	s.Side, s.Path, s.Profile, s.Busy = raw, "serve", "", 0
	cmd, told, err := command(ctx, s)
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(in.Close(), cmd.Wait()) }
	if _, err := in.Write(told); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// command is this program as one run, and what it has to be told.
func command(ctx context.Context, s spec) (cmd *exec.Cmd, told []byte, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	told, err = json.Marshal(s)
	return exec.CommandContext(ctx, program, childArg), told, err
}
