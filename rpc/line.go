package rpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/reconnect"
)

// line keeps a channel to call on there: a generation of it after the other, from the first call on.
type line struct {
	core     *core
	name     string // in State and log
	confirms bool   // what a queue refuses is known

	current atomic.Pointer[generation] // takes calls; nil: there is none now

	mu      sync.Mutex    // guards what follows, and is never held while anything waits
	changed chan struct{} // closed, and made anew, when current or ended changes
	ended   error         // why there will be no other generation
	stop    func()        // ends the supervised function; nil: it was not started
	stopped chan struct{} // closed when it has returned
	abort   chan struct{} // closed: pending calls are not waited for any more
	aborted bool
}

func newLine(c *core, name string, confirms bool) *line {
	return &line{core: c, name: name, confirms: confirms,
		changed: make(chan struct{}), stopped: make(chan struct{}), abort: make(chan struct{})}
}

// generation returns the channel to call on, and waits for it as long as ctx lets it.
func (l *line) generation(ctx context.Context) (*generation, error) {
	l.start()
	for {
		l.mu.Lock()
		g, ended, changed := l.current.Load(), l.ended, l.changed
		l.mu.Unlock()
		switch {
		case ended != nil:
			return nil, ended
		case g != nil:
			return g, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, l.notConnected(ctx)
		}
	}
}

// notConnected says why ctx ended before there was a channel.
func (l *line) notConnected(ctx context.Context) error {
	err := ended(ctx)
	for _, s := range l.core.conn.State() {
		switch {
		case s.Name != "publishing" || s.Phase == "connected":
		case s.Phase == "blocked":
			err = fmt.Errorf("%w; %w: %s", err, reconnect.ErrBlocked, s.Reason)
		default:
			err = fmt.Errorf("%w; not connected: %s", err, s.Reason)
		}
	}
	return err
}

// start starts the supervised function; only the first call has an effect.
func (l *line) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop != nil || l.ended != nil {
		return
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	go l.run(ctx)
}

func (l *line) run(ctx context.Context) {
	defer close(l.stopped)
	err := l.core.conn.SupervisePublishing(ctx, l.name, reconnect.Topology{}, l.serve)
	if err == nil {
		err = reconnect.ErrClosed
	}
	l.change(func() { l.ended = err })
}

// change makes a change of what mu guards and lets those know who wait for one.
func (l *line) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// serve is one generation: the reply consumer first, then calls.
func (l *line) serve(ctx context.Context, ch *amqp.Channel) error {
	if !report.Consumes(ctx, "") {
		return nil
	}
	g := newGeneration(ctx, l, ch)
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	returns := ch.NotifyReturn(make(chan amqp.Return, returnsRoom))
	if l.confirms {
		if err := ch.Confirm(false); err != nil {
			return err
		}
	}
	replies, err := ch.Consume(directReply, "rpc", true, false, false, false, nil)
	if err != nil {
		return err
	}
	l.change(func() { l.current.Store(g) })
	err = g.read(ctx, replies, returns, closed)
	l.change(func() { l.current.CompareAndSwap(g, nil) })
	g.end(err)
	return err
}

func (l *line) close(ctx context.Context) error {
	l.mu.Lock()
	stop := l.stop
	l.mu.Unlock()
	if stop == nil {
		l.change(func() {
			if stop = l.stop; stop == nil {
				l.ended = reconnect.ErrClosed
			}
		})
		if stop == nil {
			return nil
		}
	}
	stop()
	select {
	case <-l.stopped:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	if !l.aborted {
		l.aborted = true
		close(l.abort)
	}
	l.mu.Unlock()
	// What is left now only has to notice; a link that does not answer may take longer, and ends with its Conn.
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-l.stopped:
		return fmt.Errorf("pending calls were cut off: %w", ended(ctx))
	case <-t.C:
		return fmt.Errorf("the link does not answer: %w", ended(ctx))
	}
}
