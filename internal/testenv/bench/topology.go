package main

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// topologyOurs is how long it takes, after a cut, to have a channel again: on which all is declared.
func topologyOurs(ctx context.Context, s spec, conn *reconnect.Conn) (f figures, err error) {
	t := s.entities()
	before := memory()
	if err := conn.Declare(ctx, t); err != nil {
		return f, err
	}
	ch, err := conn.Channel(ctx)
	if err != nil {
		return f, err
	}
	f.Memory = (memory() - before) / float64(s.Callers)
	lost := ch.NotifyClose(make(chan *amqp.Error, 1))
	s.proxy.Cut()
	began := time.Now()
	<-lost
	if _, err = conn.Channel(ctx); err != nil {
		return f, err
	}
	f.Seconds = time.Since(began).Seconds()
	return f, nil
}

// entities is a topology of so many: a fifth exchanges, two fifths queues, two fifths bindings.
func (s spec) entities() (t reconnect.Topology) {
	for i := range s.Callers / 5 {
		x := fmt.Sprintf("%s-x%d", s.Queue, i)
		t.Exchanges = append(t.Exchanges, reconnect.Exchange{Name: x, Kind: amqp.ExchangeDirect})
		for j := range 2 {
			q := fmt.Sprintf("%s-q%d-%d", s.Queue, i, j)
			t.Queues = append(t.Queues, reconnect.Queue{Name: q, Type: amqp.QueueTypeClassic})
			t.Bindings = append(t.Bindings, reconnect.Binding{Queue: q, Exchange: x, Key: q})
		}
	}
	return t
}

// remove deletes queues and exchanges, and with them the bindings.
func remove(ch *amqp.Channel, t reconnect.Topology) error {
	for _, q := range t.Queues {
		if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
			return err
		}
	}
	for _, x := range t.Exchanges {
		if err := ch.ExchangeDelete(x.Name, false, false); err != nil {
			return err
		}
	}
	return nil
}
