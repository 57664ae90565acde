package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// company has all servers, and asks on behalf of the callers.
type company struct {
	url     string
	out     io.Writer
	queue   string
	cfg     rpc.ServerConfig
	servers []*server
}

// logger keeps the killed server from telling how it fares.
func (c *company) logger() *slog.Logger { return slog.New(slog.DiscardHandler) }

// results is what the parts came to.
type results struct {
	nobody, killed, repeated, late outcome
	shared, failing                tally
}

// outcome is what became of one call.
type outcome struct {
	told   string // what the caller was told
	server string // who answered
	took   time.Duration
}

// told says what the error of a call means for its caller.
func told(err error) string {
	var remote *rpc.RemoteError
	switch {
	case err == nil:
		return "answered"
	case errors.Is(err, rpc.ErrNoServer):
		return "no server"
	case errors.As(err, &remote):
		return "error of the server: " + remote.Code
	case errors.Is(err, context.DeadlineExceeded):
		return "too late"
	case errors.Is(err, reconnect.ErrUnknown):
		return "unknown: it may have been executed"
	}
	return fmt.Sprintf("not sent: %q", err)
}

func call(ctx context.Context, client *rpc.Client) outcome {
	began := time.Now()
	p, err := rpc.Call[price](ctx, client, key, quote{SKU: "A7"})
	return outcome{told(err), p.Server, time.Since(began)}
}

// settle waits until a new exchange is known to be there: a call asks for a missing one ten times a second at most.
func (c *company) settle(ctx context.Context, client *rpc.Client) {
	for ctx.Err() == nil && call(ctx, client).told == "no server" {
		time.Sleep(10 * time.Millisecond)
	}
}

// ask makes one call.
func (c *company) ask(ctx context.Context, client *rpc.Client) outcome {
	o := call(ctx, client)
	c.print(o)
	return o
}

func (c *company) print(o outcome) {
	by := ""
	if o.server != "" {
		by = " by " + o.server
	}
	fmt.Fprintf(c.out, "  %s%s, after %d ms\n", o.told, by, o.took.Milliseconds())
}

// tally is what became of many calls, by server or by what the callers were told.
type tally map[string][]time.Duration

// askMany makes calls from several goroutines, which share the client.
func (c *company) askMany(ctx context.Context, client *rpc.Client, calls int) tally {
	const callers = 8
	var mu sync.Mutex
	var wg sync.WaitGroup
	t := tally{}
	for i := range callers {
		wg.Go(func() {
			for n := i; n < calls; n += callers {
				o := call(ctx, client)
				what := o.told
				if o.server != "" {
					what += " by " + o.server
				}
				mu.Lock()
				t[what] = append(t[what], o.took)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	fmt.Fprintf(c.out, "  %-32s %6s %12s %12s\n", "", "calls", "median", "slowest")
	for _, what := range slices.Sorted(maps.Keys(t)) {
		took := slices.Sorted(slices.Values(t[what]))
		fmt.Fprintf(c.out, "  %-32s %6d %9.1f ms %9.1f ms\n", what, len(took), ms(took[len(took)/2]), ms(took[len(took)-1]))
	}
	return t
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// killOne has a call handled by a server that is killed while it works on it, when another one has come.
func (c *company) killOne(ctx context.Context, client *rpc.Client) (o outcome, err error) {
	if err := c.stopAll(); err != nil { // else one of them might take the call
		return o, err
	}
	works := make(chan struct{}, 1)
	victim, err := c.startOne(ctx, "victim", func(ctx context.Context, q quote) (price, error) {
		works <- struct{}{}
		<-ctx.Done()
		return price{}, ctx.Err()
	})
	if err != nil {
		return o, err
	}
	done := make(chan outcome, 1)
	go func() { done <- call(ctx, client) }()
	select {
	case <-works:
	case o = <-done:
		return o, errors.New("the call was not handled: " + o.told)
	}
	if err := c.start(ctx, "heir", answer("heir", 0)); err != nil {
		return o, err
	}
	victim.cable.cut()
	o = <-done
	c.print(o)
	return o, nil
}

// stopAll stops all servers, which first answer what they have begun.
func (c *company) stopAll() error {
	var faults []error
	for _, s := range c.servers {
		faults = append(faults, s.stop())
	}
	c.servers = nil
	return errors.Join(faults...)
}

// close stops what still runs and deletes what was declared.
func (c *company) close(conn *reconnect.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := c.stopAll()
	conn.Forget(c.cfg.Topology(c.queue)) // a reconnect must not make it anew
	ch, chErr := conn.Channel(ctx)
	if chErr != nil {
		return errors.Join(err, chErr)
	}
	defer ch.Close()
	_, queueErr := ch.QueueDelete(c.queue, false, false, false)
	return errors.Join(err, queueErr, ch.ExchangeDelete(c.cfg.Exchange, false, false))
}
