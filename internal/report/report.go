// Package report lets the code that runs inside a supervised function and its supervisor speak to each other without the
// two knowing each other: the one says what it is doing, the other how and for how long it may.
package report

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Phases of a supervised function, as reconnect.State shows them.
const (
	Starting  = "starting"
	Running   = "running"
	Consuming = "consuming"
	Waiting   = "waiting"
	Paused    = "paused"
)

// Supervisor is a supervisor's side. Its functions must be safe for concurrent use and must not block; any field may be
// left out.
type Supervisor struct {
	State    func(phase, reason string)
	Consumes func(queue string) bool
	Careful  bool
	Leave    <-chan struct{}
	// Connection is closed when the connection is gone on which the code runs. Each connection has one of its own.
	Connection <-chan struct{}
	// Sender is for code that publishes by hand.
	Sender Sender
}

// ErrGone is what Sender.Wait returns once the connection is gone, of which the code is told otherwise.
var ErrGone = errors.New("connection gone")

// Sender tells code that publishes by hand on its channel when it may. The driver's own writes know neither of an alarm nor
// of the buffer behind them.
type Sender interface {
	// Free reports whether a message may be handed to the driver at once.
	Free(exchange, key string, body []byte) bool
	// Wait waits until it may: for the end of an alarm, for room in the buffer, for the answer whether the exchange exists. Its
	// error is ctx's, joined with that of an alarm; ErrGone; or the *amqp.Error that such a message has met or would meet.
	Wait(ctx context.Context, exchange, key string, body []byte) error
	// Refused is told that the broker closed the channel with err because of a message: for a while, growing with each time,
	// the next one of its kind fails in Wait. A missing exchange (404) is asked for again by the next one.
	Refused(exchange, key string, body []byte, err *amqp.Error)
	// Apart runs fn on a channel of a connection made for that, which the broker may close because of what fn does; then its
	// error has the broker's *amqp.Error. It ends with ctx.
	Apart(ctx context.Context, fn func(ch *amqp.Channel) error) error
}

type key struct{}

// Under returns a context in which the functions of this package speak to s.
func Under(ctx context.Context, s *Supervisor) context.Context {
	return context.WithValue(ctx, key{}, s)
}

// With is Under with a State function only.
func With(ctx context.Context, state func(phase, reason string)) context.Context {
	return Under(ctx, &Supervisor{State: state})
}

func of(ctx context.Context) Supervisor {
	if s, ok := ctx.Value(key{}).(*Supervisor); ok {
		return *s
	}
	return Supervisor{}
}

// State tells the supervisor of ctx, if there is one, the phase and the reason of it ("" when there is nothing to explain).
func State(ctx context.Context, phase, reason string) {
	if s := of(ctx); s.State != nil {
		s.State(phase, reason)
	}
}

// Consumes tells the supervisor, before anything is consumed, from which queue that will be ("" for one that is the
// channel's own, direct reply-to), and that the caller minds Leave. When it returns false the caller returns nil without
// consuming: it will be called again on another connection.
func Consumes(ctx context.Context, queue string) bool {
	if s := of(ctx); s.Consumes != nil {
		return s.Consumes(queue)
	}
	return true
}

// Careful says that each delivery may be one that costs the connection: no more than one may be unacknowledged at a time.
func Careful(ctx context.Context) bool { return of(ctx).Careful }

// Leave is closed when the caller is to take nothing new, finish what it has started in its own time and return nil, to
// be called again on another connection. It is nil when that never happens.
func Leave(ctx context.Context) <-chan struct{} { return of(ctx).Leave }

// Connection is closed when the connection is gone on which the supervised function of ctx runs. It is the same for all
// channels of one connection and another one for the next, so it also tells whether what is private to a connection, an
// exclusive queue, is there. It is nil outside of a supervised function.
func Connection(ctx context.Context) <-chan struct{} { return of(ctx).Connection }

// SenderOf returns the Sender of ctx, or one that lets everything pass outside of a supervised function.
func SenderOf(ctx context.Context) Sender {
	if s := of(ctx).Sender; s != nil {
		return s
	}
	return free{}
}

type free struct{}

func (free) Free(string, string, []byte) bool                       { return true }
func (free) Wait(context.Context, string, string, []byte) error     { return nil }
func (free) Apart(context.Context, func(*amqp.Channel) error) error { return ErrGone }
func (free) Refused(string, string, []byte, *amqp.Error)            {}
