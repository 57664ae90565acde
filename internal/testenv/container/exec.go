package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/moby/moby/client"
)

// signal sends a signal to one process inside a container.
func (e *engine) signal(ctx context.Context, id string, pid int, signal string) error {
	if pid <= 1 {
		return fmt.Errorf("signal to process %d", pid)
	}
	return e.exec(ctx, id, "sh", "-c", `kill -s "$0" "$1"`, signal, strconv.Itoa(pid))
}

// exec runs a program inside a container and waits for it.
func (e *engine) exec(ctx context.Context, id string, argv ...string) error {
	created, err := e.client.ExecCreate(ctx, id, client.ExecCreateOptions{User: "root", Cmd: argv})
	if err != nil {
		return err
	}
	if _, err := e.client.ExecStart(ctx, created.ID, client.ExecStartOptions{Detach: true}); err != nil {
		return err
	}
	for {
		state, err := e.client.ExecInspect(ctx, created.ID, client.ExecInspectOptions{})
		switch {
		case err != nil:
			return err
		case !state.Running && state.ExitCode != 0:
			return fmt.Errorf("%q ended with status %d", argv, state.ExitCode)
		case !state.Running:
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
