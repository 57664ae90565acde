package rpc

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// started is told by the server that has begun with a cancellable request where it takes a cancel. When the call is over
// already, it gets that at once.
func (g *generation) started(d amqp.Delivery) {
	g.mu.Lock()
	k := g.calls[d.CorrelationId]
	if k != nil {
		k.server = d.ReplyTo
	}
	g.mu.Unlock()
	if k == nil && g.core.cfg.NotifyCancel {
		g.sendCancel(d.ReplyTo, d.CorrelationId)
	}
}

// cancel tells the server that k, which was cancelled, is over.
func (g *generation) cancel(k *call) {
	g.mu.Lock()
	server := k.server
	g.mu.Unlock()
	if server != "" {
		g.sendCancel(server, k.id)
	}
}

// probeFor bounds how long it may take to find out whether the broker takes an address.
const probeFor = 5 * time.Second

// sendCancel sends a cancel, without waiting: it is a favour. Whoever answers the request names the address, and like one
// that a caller names it must not cost us the connection: see nodes.
func (g *generation) sendCancel(server, id string) {
	to, ok := addressOf(server)
	if !ok {
		return
	}
	switch good, known := g.core.nodes.look(to.class); {
	case !known: // only the first time
		go func() {
			ctx, cancel := context.WithTimeout(g.life, probeFor)
			defer cancel()
			good, err := g.core.nodes.has(ctx, to, func() bool { return false })
			var refusal *amqp.Error
			switch {
			case errors.As(err, &refusal) && refusal.Code == amqp.AccessRefused:
				g.core.nodes.learn(to.class, false) // of no use to us; asked again in a while
			case err == nil && good:
				g.publishCancel(server, id)
			}
		}()
	case good:
		g.publishCancel(server, id)
	}
}

func (g *generation) publishCancel(server, id string) {
	if !g.sender.Free("", server, nil) {
		return
	}
	_ = g.ch.Publish("", server, false, false, amqp.Publishing{
		CorrelationId: id, DeliveryMode: amqp.Transient, Headers: amqp.Table{headerKind: kindCancel}})
}
