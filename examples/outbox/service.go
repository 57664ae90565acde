package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
)

// Environment of a process that is the service: how its life ends, and where everything is.
const (
	lifeEnv  = "WARREN_OUTBOX_LIFE"
	placeEnv = "WARREN_OUTBOX_PLACE"
)

// How a life of the service ends.
const (
	afterCommit  = "after commit"
	afterConfirm = "after confirm"
	unharmed     = "unharmed"
)

var quiet = slog.New(slog.DiscardHandler)

// place is where everything is. Every process is told.
type place struct{ Broker, Database, Queue string }

// order is the payload of an event.
type order struct{ ID uuid.UUID }

// live is the main function of the service. It ends by itself when its parent is gone.
func live() (exit int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	var at place
	err := json.Unmarshal([]byte(os.Getenv(placeEnv)), &at)
	if err == nil {
		err = serve(ctx, at, os.Getenv(lifeEnv))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		return 1
	}
	return 0
}

// serve takes orders, and sends what is in the outbox until nothing is left.
func serve(ctx context.Context, at place, life string) error {
	pool, err := pgxpool.New(ctx, at.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := reconnect.Dial(ctx, at.Broker, reconnect.Config{Name: "order service", Logger: quiet})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	box, err := outbox.New(pool, outbox.Config{Logger: quiet})
	if err != nil {
		return err
	}
	for range perLife {
		if err := take(ctx, box, at.Queue); err != nil {
			return err
		}
	}
	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Window: 1000})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(box, mortal{pub, life}, outbox.RelayConfig{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // in a service that goes on there is no such thing
		defer stop()
		for stats, err := box.Stats(ctx); ctx.Err() == nil && (err != nil || stats.Waiting > 0); stats, err = box.Stats(ctx) {
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return relay.Run(ctx)
}

// take stores an order and the event about it: both, or neither.
func take(ctx context.Context, box *outbox.Outbox, queue string) error {
	o := order{uuid.New()}
	return box.InTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", o.ID); err != nil {
			return err
		}
		return box.Enqueue(ctx, tx, outbox.Message{Key: queue, OrderingKey: o.ID.String(), JSON: o})
	})
}

// mortal is the publisher of a relay that is to die at a certain moment.
type mortal struct {
	outbox.Publisher
	life string
}

func (m mortal) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	if m.life == afterCommit {
		die()
	}
	err := m.Publisher.PublishBatch(ctx, msgs)
	if m.life == afterConfirm && err == nil {
		die()
	}
	return err
}

// die ends the process as a power failure would.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // not a step further
}

// spawn starts this program once more, as the service, and waits for its end.
func spawn(ctx context.Context, life string, at place) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	where, err := json.Marshal(at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), lifeEnv+"="+life, placeEnv+"="+string(where))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // it closes when this process dies, and then the other one ends, too
		return err
	}
	err = cmd.Run()
	killed := cmd.ProcessState != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the service did not end: %w", ctx.Err())
	case life == unharmed:
		return err
	case !killed:
		return errors.Join(fmt.Errorf("the service was to be killed %s", life), err)
	}
	return nil
}
