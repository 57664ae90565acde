package main

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// remove leaves nothing behind on somebody's broker; a real service keeps its queue.
func remove(ctx context.Context, conn *reconnect.Conn, queue workqueue.Queue) error {
	conn.Forget(queue.Topology()) // a reconnect must not make it anew
	ch, err := conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	for _, q := range queue.Topology().Queues {
		if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
			return err
		}
	}
	return nil
}

// produce sends a message each second. It needs no case for a broker that is away: Publish waits for it.
func produce(ctx context.Context, conn *reconnect.Conn, queue workqueue.Queue) error {
	producer, err := workqueue.NewProducer(conn, queue, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		if err := producer.Publish(ctx, amqp.Publishing{Body: []byte("tick")}); err != nil && ctx.Err() == nil {
			fmt.Println("publish:", err)
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func tick(_ context.Context, d amqp.Delivery) error {
	fmt.Printf("%s %s\n", d.Timestamp.Format(time.TimeOnly), d.Body)
	return nil
}
