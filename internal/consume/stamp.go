package consume

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type stampKey struct{}

// Arrived returns when the message came that the handler of ctx handles, however long it then waited in the prefetch or with a "not
// now". It is zero without Config.Stamp.
func Arrived(ctx context.Context) time.Time {
	at, _ := ctx.Value(stampKey{}).(time.Time)
	return at
}

// stamp rides on a delivery where its acknowledger is, which the worker replaces.
type stamp struct {
	amqp.Acknowledger
	at time.Time
}

// stamped passes deliveries on and notes when each came. It has room for all that may be unacknowledged, so that it never waits for
// the worker; it ends with in.
func stamped(in <-chan amqp.Delivery, prefetch int) <-chan amqp.Delivery {
	out := make(chan amqp.Delivery, prefetch)
	go func() {
		defer close(out)
		for d := range in {
			d.Acknowledger = &stamp{d.Acknowledger, time.Now()}
			out <- d
		}
	}()
	return out
}

// stampOf is when d came; one that was not stamped did now, since nothing can have been before it.
func stampOf(d amqp.Delivery) time.Time {
	if s, ok := d.Acknowledger.(*stamp); ok {
		return s.at
	}
	return time.Now()
}
