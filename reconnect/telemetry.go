package reconnect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/telemetry"
)

// describe gives m the trace context, unless that would make it too large, and tells what m is.
func (p *Publisher) describe(m *Message, tale *telemetry.Publishing) {
	own := m.Headers
	if tale.Inject(&m.Publishing) && p.validate(m) != nil {
		m.Headers = own
	}
	tale.Describe(&m.Publishing)
}

// tell ends the tale of a message; its headers are not used after that.
func tell(tale *telemetry.Publishing, err error) {
	if !tale.Told() {
		tale.End("", nil, false)
		return
	}
	kind, sent := errorType(err)
	tale.End(kind, err, sent)
}

// errorType returns a word for the outcome of a publish, out of few, and whether the message was handed over and not
// refused for what it is.
func errorType(err error) (kind string, sent bool) {
	if err == nil {
		return "", true // before what follows is allocated
	}
	var (
		returned *ReturnedError
		topology *TopologyError
	)
	switch {
	case errors.Is(err, ErrUnknown):
		return "unknown", true
	case errors.As(err, &returned):
		return "returned", true
	case errors.Is(err, ErrRefused):
		return "refused", true
	case errors.Is(err, ErrBlocked):
		return "blocked", false
	case errors.Is(err, ErrBusy):
		return "busy", false
	case errors.Is(err, ErrClosed):
		return "closed", false
	case errors.As(err, &topology):
		return "topology", false
	case amqpCode(err) != 0:
		return "amqp_" + strconv.Itoa(amqpCode(err)), false
	case errors.Is(err, context.Canceled):
		return "canceled", false
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", false
	case isPermanent(err):
		return "invalid", false
	}
	return "other", false
}

// openChannels are the channels in confirm mode that live.
type openChannels struct {
	mu  sync.Mutex
	all map[*confirms]struct{}
}

func (o *openChannels) add(c *confirms) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*confirms]struct{}{}
	}
	o.all[c] = struct{}{}
}

func (o *openChannels) remove(c *confirms) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

// unconfirmed is how many messages are in flight, give or take those that are just being sent.
func (o *openChannels) unconfirmed() (n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		n += int64(max(0, len(c.slots)-int(c.inLine.Load())))
	}
	return n
}

// linkTimes adds up what a link has been through.
type linkTimes struct {
	connects int64
	blocked  time.Duration // without the present one
}

func isUp(phase string) bool { return phase == phaseConnected || phase == phaseBlocked }

// change notes that a link goes from one phase to another.
func (t *linkTimes) change(from, to State) {
	if isUp(to.Phase) && !isUp(from.Phase) {
		t.connects++
	}
	if from.Phase == phaseBlocked {
		t.blocked += to.Since.Sub(from.Since)
	}
}

// times is called with mu held.
func (b *board) times(role string) *linkTimes {
	t := b.links[role]
	if t == nil {
		t = &linkTimes{}
		b.links[role] = t
	}
	return t
}

// observed returns what metrics say of the links.
func (b *board) observed() []telemetry.Link {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []telemetry.Link
	for who, t := range b.links {
		s := b.states[who]
		blocked := t.blocked
		if s.Phase == phaseBlocked {
			blocked += time.Since(s.Since)
		}
		out = append(out, telemetry.Link{Role: s.Name, Up: s.Phase == phaseConnected, Reconnects: max(0, t.connects-1), Blocked: blocked.Seconds()})
	}
	return out
}

// watchers are what a Conn has registered with the MeterProvider.
type watchers struct {
	mu      sync.Mutex
	stopped bool
	next    int
	stops   map[int]func()
}

// add takes note of a registration and returns what ends it, once.
func (w *watchers) add(stop func()) (func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		stop()
		return nil, ErrClosed
	}
	if w.stops == nil {
		w.stops = map[int]func(){}
	}
	id := w.next
	w.next++
	w.stops[id] = stop
	return func() { w.end(id) }, nil
}

func (w *watchers) end(id int) {
	w.mu.Lock()
	stop := w.stops[id]
	delete(w.stops, id)
	w.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// stop ends all, now and in the future. It does not wait for that, but returns what is closed then: a MeterProvider lets nobody go
// while it collects, for as long as anybody whom it asks takes.
func (w *watchers) stop() (done <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stops, ended := w.stops, make(chan struct{})
	w.stops, w.stopped = nil, true
	go func() {
		defer close(ended)
		for _, stop := range stops {
			stop()
		}
	}()
	return ended
}

// observe has metrics be collected of c.
func (c *Conn) observe() {
	_, _ = c.observed.add(c.telemetry.Observe(telemetry.Conn{Name: c.cfg.Name, Links: c.board.observed,
		Unconfirmed: c.channels.unconfirmed, Callers: c.callers.Load}))
}

// lookFor bounds how long the depths of queues are asked for when metrics are collected.
const lookFor = 5 * time.Second

// ObserveQueues makes the MeterProvider's readers see how many messages are ready in the queues, and how many consumers
// they have, each time they collect (metrics warren.queue.messages and warren.queue.consumers), until stop is called or
// the Conn is closed. That costs a round trip for each queue, all together bounded by 5 s: a broker that is away, or a queue
// that does not exist, has no value. One program should do this for a queue, not each of its workers. It does no I/O itself,
// and returns an error for a name that no queue can have, and ErrClosed.
func (c *Conn) ObserveQueues(queues ...string) (stop func(), err error) {
	var faults []error
	for i, queue := range queues {
		if err := errors.Join(shortQueueName(queue)...); err != nil {
			faults = append(faults, fmt.Errorf("number %d: %w", i, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("reconnect: observe queues: %w", err)
	}
	names := append([]string(nil), queues...)
	return c.observed.add(c.telemetry.ObserveQueues(func(ctx context.Context) []telemetry.Queue { return c.depths(ctx, names) }))
}

// depths asks the broker, if there is a connection to it.
func (c *Conn) depths(ctx context.Context, queues []string) []telemetry.Queue {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	var out []telemetry.Queue
	for _, queue := range queues {
		if s, _ := c.readingLink().now(); s == nil {
			return out
		}
		q, err := c.Inspect(ctx, queue)
		var e *amqp.Error
		switch {
		case err == nil:
			out = append(out, telemetry.Queue{Name: queue, Messages: int64(q.Messages), Consumers: int64(q.Consumers)})
		case !errors.As(err, &e):
			return out
		}
	}
	return out
}
