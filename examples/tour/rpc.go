package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// counter is the chapter on request and reply: a caller, and servers who answer.
type counter struct {
	*tour
	queue   string
	cable   *cable
	conn    *reconnect.Conn // of the caller, whose cable is cut
	servers *reconnect.Conn
	client  *rpc.Client
}

func requestReply(ctx context.Context, t *tour) (err error) {
	c := &counter{tour: t, queue: t.name("squares"), cable: new(cable)}
	c.conn, err = reconnect.Dial(ctx, t.url, reconnect.Config{Name: t.name("caller"), DialContext: c.cable.dial, Logger: t.logger()})
	if err != nil {
		return err
	}
	defer c.conn.Close(context.Background())
	c.servers, err = reconnect.Dial(ctx, t.url, reconnect.Config{Name: t.name("servers"), Logger: t.logger()})
	if err != nil {
		return err
	}
	defer c.servers.Close(context.Background())
	defer func() { err = errors.Join(err, c.cleanUp()) }()
	if c.client, err = rpc.NewClient(c.conn, rpc.ClientConfig{Timeout: 10 * time.Second}); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{c.answering, c.losing, c.expiring} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// square is a server's work.
func square(_ context.Context, n int) (int, error) {
	if n < 0 {
		return 0, fmt.Errorf("%d is negative", n)
	}
	return n * n, nil
}

// serve runs a server for each handler while the given function goes on.
func (c *counter) serve(ctx context.Context, during func() error, handlers ...rpc.Handler) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	errs := make([]error, len(handlers))
	for i, h := range handlers {
		server, err := rpc.NewServer(c.servers, c.queue, h, rpc.ServerConfig{Concurrency: 4})
		if err != nil {
			return err
		}
		wg.Go(func() {
			if errs[i] = server.Run(running); errs[i] != nil {
				stop()
			}
		})
		select {
		case <-server.Ready():
		case <-running.Done():
		}
	}
	err := during()
	stop()
	wg.Wait()
	return errors.Join(append(errs, err)...)
}

func (c *counter) answering(ctx context.Context) error {
	const calls = 200
	c.step("Every call gets its own answer")
	c.say("%d calls at once ask two servers for squares, on one channel. A negative number is an error of the server's:", calls)
	_, err := rpc.Call[int](ctx, c.client, c.queue, 1)
	c.figure("before there is one: ErrNoServer", boolean(errors.Is(err, rpc.ErrNoServer)), 1)
	var worked [2]atomic.Int64
	working := func(i int) rpc.Handler {
		return rpc.JSON(func(ctx context.Context, n int) (int, error) {
			worked[i].Add(1)
			pause(ctx, time.Millisecond)
			return square(ctx, n)
		})
	}
	return c.serve(ctx, func() error {
		var right, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				n := i
				if i%10 == 9 {
					n = -i
				}
				got, err := rpc.Call[int](ctx, c.client, c.queue, n)
				var remote *rpc.RemoteError
				switch {
				case err == nil && got == n*n && n >= 0:
					right.Add(1)
				case errors.As(err, &remote) && remote.Message == fmt.Sprintf("%d is negative", n):
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		c.figure("right answers", int(right.Load()), calls-calls/10)
		c.figure("errors of the server", int(refused.Load()), calls/10)
		for i := range worked {
			c.between(fmt.Sprintf("of them by server %d", i+1), int(worked[i].Load()), 1, calls-1)
		}
		return nil
	}, working(0), working(1))
}

func (c *counter) losing(ctx context.Context) error {
	const calls = 4 // as many as are worked on at once
	c.step("The cable is cut while calls are being worked on")
	c.say("Their answers cannot come any more, and nobody knows whether they will have been worked out: every caller is told so")
	c.say("at once. Calls of which the client says that they may be executed twice are sent again instead:")
	for _, again := range []bool{false, true} {
		client, what := c.client, "in doubt: ErrUnknown"
		if again {
			client, what = c.client.Idempotent(), "sent again, and answered"
		}
		if err := c.cutDuring(ctx, client, calls, what); err != nil {
			return err
		}
	}
	return nil
}

// cutDuring cuts the cable while calls are being worked on.
func (c *counter) cutDuring(ctx context.Context, client *rpc.Client, calls int, what string) error {
	started, release := make(chan struct{}, 2*calls), make(chan struct{})
	held := rpc.JSON(func(ctx context.Context, n int) (int, error) {
		started <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return square(ctx, n)
	})
	return c.serve(ctx, func() error {
		var told atomic.Int64
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				got, err := rpc.Call[int](ctx, client, c.queue, i)
				if client == c.client && errors.Is(err, reconnect.ErrUnknown) || client != c.client && err == nil && got == i*i {
					told.Add(1)
				}
			})
		}
		for range calls {
			select {
			case <-started:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		began := time.Now()
		c.cable.cut()
		if client != c.client {
			close(release)
		}
		wg.Wait()
		took := time.Since(began)
		if client == c.client {
			close(release)
		}
		c.figure(what, int(told.Load()), calls)
		c.between("   all of them, in ms", int(took.Milliseconds()), 0, 3000)
		c.figure("   calls still pending", client.Pending(), 0)
		return nil
	}, held)
}

func (c *counter) expiring(ctx context.Context) error {
	const calls, patience = 50, 200 * time.Millisecond
	c.step("Nobody works on what nobody waits for")
	c.say("No server runs while %d calls are made, each of which waits for %v. Then one comes:", calls, patience)
	var late, executed atomic.Int64
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			hurry, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if _, err := rpc.Call[int](hurry, c.client, c.queue, i); errors.Is(err, context.DeadlineExceeded) {
				late.Add(1)
			}
		})
	}
	wg.Wait()
	// A request came to the broker a moment after its caller began to wait, and lives as long from then; a longer one if that
	// was busy.
	for waits := 1; waits > 0; {
		pause(ctx, patience)
		q, err := c.conn.Inspect(ctx, c.queue)
		if err != nil {
			return err
		}
		waits = q.Messages
	}
	c.figure("too late: context.DeadlineExceeded", int(late.Load()), calls)
	return c.serve(ctx, func() error {
		got, err := rpc.Call[int](ctx, c.client, c.queue, 12)
		c.figure("the square of 12, asked for now", got, 144)
		c.figure("requests executed", int(executed.Load()), 1)
		return err
	}, func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		executed.Add(1)
		return rpc.JSON(square)(ctx, d)
	})
}

// cleanUp deletes the chapter's queue, also after an error.
func (c *counter) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c.servers.Forget(rpc.ServerConfig{}.Topology(c.queue))
	ch, err := c.servers.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	_, err = ch.QueueDelete(c.queue, false, false, false)
	return err
}
