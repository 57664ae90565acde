// Package apart is how a caller of reconnect.Conn.Supervise asks, through the context, for a connection of its own: for reading
// messages of which one may close the connection of whoever is sent it. It is no setting of Supervise's, since whoever
// uses this module has no need to know of it: Supervise itself moves functions apart that turn out to need it.
package apart

import (
	"context"
	"errors"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Wish asks for a connection of its own, from the start and for as long as Supervise runs.
type Wish struct {
	// Unreadable is called, from any goroutine, when a message that the driver cannot read has closed that connection, before
	// the function is run again.
	Unreadable func(why error)
}

// Socket is a connection to the broker on which nothing was said yet: the handshake of TLS, if any, is done, that of AMQP
// is not.
type Socket struct {
	net.Conn
	Auth  amqp.Authentication
	Vhost string
}

type (
	wishKey   struct{}
	dialerKey struct{}
)

// With returns a context for Supervise that carries a wish.
func With(ctx context.Context, w *Wish) context.Context { return context.WithValue(ctx, wishKey{}, w) }

// Of returns the wish that ctx carries, or nil.
func Of(ctx context.Context) *Wish {
	w, _ := ctx.Value(wishKey{}).(*Wish)
	return w
}

// WithDialer returns a context in which Dial uses dial.
func WithDialer(ctx context.Context, dial func(context.Context) (Socket, error)) context.Context {
	return context.WithValue(ctx, dialerKey{}, dial)
}

// Dial opens, for a supervised function that has a connection of its own, a further one of which it speaks the protocol
// itself. The caller closes it.
func Dial(ctx context.Context) (Socket, error) {
	dial, ok := ctx.Value(dialerKey{}).(func(context.Context) (Socket, error))
	if !ok {
		return Socket{}, errors.New("apart: not inside a supervised function that has a connection of its own")
	}
	return dial(ctx)
}
