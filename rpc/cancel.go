package rpc

import (
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

// sendCancel sends a cancel if that needs no waiting: it is a favour.
func (g *generation) sendCancel(server, id string) {
	if _, ok := addressOf(server); !ok || !g.sender.Free("", server, nil) {
		return
	}
	_ = g.ch.Publish("", server, false, false, amqp.Publishing{
		CorrelationId: id, DeliveryMode: amqp.Transient, Headers: amqp.Table{headerKind: kindCancel}})
}
