package rpc

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/reconnect"
)

// cancels is a server's side of cancelling: a channel with a reply consumer of its own, whose address callers of cancellable
// requests are told, and the handlers that run for such. The channel is opened with the first of them.
type cancels struct {
	conn  *reconnect.Conn
	queue string

	mu      sync.Mutex
	running map[string]*running // by correlation id
	ch      *amqp.Channel       // nil: none to tell or be told on
	sender  report.Sender
	begin   func() // starts the supervised function; nil: it runs, or the server does not
}

// running is the run of one handler.
type running struct {
	id, caller string
	direct     bool // caller is a channel's address
	cancel     context.CancelCauseFunc
}

func newCancels(conn *reconnect.Conn, queue string) *cancels {
	return &cancels{conn: conn, queue: queue, running: map[string]*running{}}
}

// open readies c for a Run of its server. The returned function ends that, and waits.
func (c *cancels) open(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin = func() {
		wg.Go(func() {
			// Its only errors are the Conn's end, of which the loop is told as well, and those that the Conn has logged.
			_ = c.conn.SupervisePublishing(ctx, "cancels of "+c.queue, reconnect.Topology{}, c.serve)
		})
	}
	return func() {
		c.mu.Lock()
		c.begin = nil
		c.mu.Unlock()
		cancel()
		wg.Wait()
	}
}

// add notes that a handler begins with d, and tells the caller. done is to be called when it has returned.
func (c *cancels) add(ctx context.Context, d *amqp.Delivery, direct bool) (_ context.Context, done func()) {
	r := &running{id: d.CorrelationId, caller: d.ReplyTo, direct: direct}
	ctx, r.cancel = context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begin != nil {
		c.begin()
		c.begin = nil
	}
	c.running[r.id] = r
	c.tell(r)
	return ctx, func() {
		r.cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running[r.id] == r {
			delete(c.running, r.id)
		}
	}
}

// tell tells a caller where a cancel goes. It does not wait: a caller that does not hear of it only cannot cancel. It is
// called with mu held.
func (c *cancels) tell(r *running) {
	if c.ch == nil || !r.direct || !c.sender.Free("", r.caller, nil) {
		return
	}
	_ = c.ch.Publish("", r.caller, false, false, amqp.Publishing{ReplyTo: directReply, CorrelationId: r.id,
		DeliveryMode: amqp.Transient, Headers: amqp.Table{headerKind: kindStarted}})
}

// serve takes cancels on one channel. Those who were told of an earlier one are told anew.
func (c *cancels) serve(ctx context.Context, ch *amqp.Channel) error {
	in, err := ch.Consume(directReply, "rpc", true, false, false, false, nil)
	if err != nil {
		return err
	}
	c.set(ch, report.SenderOf(ctx))
	defer c.set(nil, nil)
	for {
		select {
		case d, ok := <-in:
			if !ok {
				_ = ch.Close() // unless it is: without its consumer it is of no use
				return errEnded
			}
			if kindOf(d.Headers) == kindCancel {
				c.cancel(d.CorrelationId)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *cancels) set(ch *amqp.Channel, sender report.Sender) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ch, c.sender = ch, sender
	for _, r := range c.running {
		c.tell(r)
	}
}

func (c *cancels) cancel(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.running[id]; r != nil {
		r.cancel(errNobodyWaits)
	}
}
