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

// core is what the Clients on one channel share: the supervised function that keeps a generation of that channel there.
type core struct {
	conn *reconnect.Conn
	cfg  ClientConfig
	ids  ids
	pool sync.Pool // of *call, without a request

	expirations expirations
	absent      atomic.Pointer[absence]

	pending, dropped atomic.Int64
	current          atomic.Pointer[generation] // takes calls; nil: there is none now

	mu      sync.Mutex    // guards what follows, and is never held while anything waits
	changed chan struct{} // closed, and made anew, when current or ended changes
	ended   error         // why there will be no other generation
	stop    func()        // ends the supervised function; nil: it was not started
	stopped chan struct{} // closed when it has returned
	abort   chan struct{} // closed: pending calls are not waited for any more
	aborted bool
}

func newCore(conn *reconnect.Conn, cfg ClientConfig) *core {
	return &core{conn: conn, cfg: cfg, changed: make(chan struct{}), stopped: make(chan struct{}), abort: make(chan struct{}),
		pool: sync.Pool{New: func() any { return newCall() }}}
}

// generation returns the channel to call on, and waits for it as long as ctx lets it.
func (c *core) generation(ctx context.Context) (*generation, error) {
	c.start()
	for {
		c.mu.Lock()
		g, ended, changed := c.current.Load(), c.ended, c.changed
		c.mu.Unlock()
		switch {
		case ended != nil:
			return nil, ended
		case g != nil:
			return g, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, c.notConnected(ctx)
		}
	}
}

// notConnected says why ctx ended before there was a channel.
func (c *core) notConnected(ctx context.Context) error {
	err := ended(ctx)
	for _, s := range c.conn.State() {
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

// absence is what is known of an exchange that is not there.
type absence struct {
	err   error
	until time.Time
}

// askAgain is how often a missing exchange is asked for at most: until a server has made it every call does.
const askAgain = 100 * time.Millisecond

// missing returns the error of a call to an exchange that was not there a moment ago.
func (c *core) missing() error {
	if a := c.absent.Load(); a != nil && time.Now().Before(a.until) {
		return a.err
	}
	return nil
}

// start starts the supervised function; only the first call has an effect.
func (c *core) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil || c.ended != nil {
		return
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	go c.run(ctx)
}

func (c *core) run(ctx context.Context) {
	defer close(c.stopped)
	name := "rpc client"
	if c.cfg.Exchange != "" {
		name += " of " + c.cfg.Exchange
	}
	err := c.conn.SupervisePublishing(ctx, name, reconnect.Topology{}, c.serve)
	if err == nil {
		err = reconnect.ErrClosed
	}
	c.change(func() { c.ended = err })
}

// change makes a change of what mu guards and lets those know who wait for one.
func (c *core) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// serve is one generation: the reply consumer first, then calls.
func (c *core) serve(ctx context.Context, ch *amqp.Channel) error {
	g := newGeneration(c, ch, report.SenderOf(ctx))
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	returns := ch.NotifyReturn(make(chan amqp.Return, returnsRoom))
	if err := ch.Confirm(false); err != nil {
		return err
	}
	replies, err := ch.Consume(directReply, "rpc", true, false, false, false, nil)
	if err != nil {
		return err
	}
	c.change(func() { c.current.Store(g) })
	err = g.read(ctx, replies, returns, closed)
	c.change(func() { c.current.CompareAndSwap(g, nil) })
	g.end(err)
	return err
}

// closeWithin bounds close whatever its context says.
const closeWithin = 30 * time.Second

func (c *core) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	c.mu.Lock()
	stop := c.stop
	c.mu.Unlock()
	if stop == nil {
		c.change(func() {
			if stop = c.stop; stop == nil {
				c.ended = reconnect.ErrClosed
			}
		})
		if stop == nil {
			return nil
		}
	}
	stop()
	select {
	case <-c.stopped:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	if !c.aborted {
		c.aborted = true
		close(c.abort)
	}
	c.mu.Unlock()
	// What is left now only has to notice; a link that does not answer may take longer, and ends with its Conn.
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-c.stopped:
		return fmt.Errorf("pending calls were cut off: %w", ended(ctx))
	case <-t.C:
		return fmt.Errorf("the link does not answer: %w", ended(ctx))
	}
}
