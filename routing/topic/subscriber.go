package topic

import (
	"context"
	"time"

	"github.com/warrenmq/warren/internal/exchange"
	"github.com/warrenmq/warren/reconnect"
)

// SubscriberConfig says how a Subscriber consumes. The zero value is one handler at a time, with up to 100 messages
// fetched ahead.
type SubscriberConfig struct {
	// Concurrency is the number of handlers that run at once, each with a channel of its own on which messages are
	// handled in order. Default 1; with more there is no order over all of them.
	Concurrency int

	// Prefetch is how many messages each of them holds at most, 1 to 65535. It begins with one and doubles while handlers
	// finish, and acknowledges several messages at once. Default 100.
	Prefetch int

	// HandlerTimeout ends a handler's context; times Prefetch it must not exceed the Conn's ConsumerTimeout, which the
	// broker enforces by closing the channel. -1: none. Default 5/6 of ConsumerTimeout over Prefetch: 15 s.
	HandlerTimeout time.Duration

	// ShutdownTimeout is how long handlers may go on after Run's context has ended. Default 30 s.
	ShutdownTimeout time.Duration

	// OnGap is called when the live subscription was not bound to the exchange between from and to, so that what was
	// published in between, and what was waiting in its queue, is missed: once for each gap, when it is bound again and
	// before the next message is handled. from is up to a second early, so that the gap is never shorter than the real
	// one. The next message waits until it returns. Live only.
	OnGap func(from, to time.Time)

	// OnOverflow is called when messages may have been dropped because the live subscription's queue was full: again and
	// again while it is, and once afterwards. The broker tells nobody, so this is a suspicion from its length, looked at
	// every second and ten times a second when a quarter full; a burst between two looks stays unseen. Calls do not
	// overlap, and messages go on meanwhile. Live only.
	OnOverflow func()
}

func (cfg SubscriberConfig) inner() exchange.SubscriberConfig { return exchange.SubscriberConfig(cfg) }

// Subscriber handles the messages of one subscription.
type Subscriber struct {
	inner *exchange.Subscriber
}

// NewSubscriber returns a Subscriber of a durable subscription, which misses nothing from the moment its queue was first
// declared, whether or not a subscriber runs. Any number of Subscribers, in any number of processes, may share the queue;
// each message goes to one of them. It does no I/O. It returns every fault of s and cfg at once, each naming its field.
func NewSubscriber(conn *reconnect.Conn, s Subscription, h Handler, cfg SubscriberConfig) (*Subscriber, error) {
	inner, err := exchange.NewSubscriber(conn, "topic", s.inner(), h, cfg.inner())
	if err != nil {
		return nil, err
	}
	return &Subscriber{inner}, nil
}

// NewLiveSubscriber returns a Subscriber of a live subscription: this instance, from now on. What is published while it
// is not connected is missed, and each such gap told to OnGap; what its handler fails on is dropped. It does no I/O. It
// returns every fault of s and cfg at once, each naming its field.
func NewLiveSubscriber(conn *reconnect.Conn, s Subscription, h Handler, cfg SubscriberConfig) (*Subscriber, error) {
	inner, err := exchange.NewLiveSubscriber(conn, "topic", s.inner(), h, cfg.inner())
	if err != nil {
		return nil, err
	}
	return &Subscriber{inner}, nil
}

// Run consumes until ctx ends, through every loss of its channels and connections. Then it takes nothing new, lets
// started handlers finish for up to ShutdownTimeout, settles, hands back what was not started (a live subscription
// deletes its queue), and returns nil, or an error that counts the handlers it had to abandon. It returns earlier only
// for what cannot be mended: a *reconnect.TopologyError, or reconnect.ErrClosed. It may be called again afterwards, but
// not twice at once; a live subscription counts the time between as a gap.
func (s *Subscriber) Run(ctx context.Context) error { return s.inner.Run(ctx) }

// Ready returns a channel that is closed once the queue is bound and every handler's channel has consumed for the first
// time: what is published from then on is received.
func (s *Subscriber) Ready() <-chan struct{} { return s.inner.Ready() }

// Pause makes the Subscriber take nothing new; what it has not started goes back to the queue, which stays bound and
// fills. It does not wait. Before Run it holds from the beginning: Ready then waits for Resume, though the queue is bound.
func (s *Subscriber) Pause() { s.inner.Pause() }

// Resume ends a Pause.
func (s *Subscriber) Resume() { s.inner.Resume() }
