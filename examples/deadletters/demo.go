package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// runDemo shows the commands on the broker of AMQP_URL, or on one that it starts, and takes away what it made.
func runDemo(ctx context.Context, out io.Writer) (err error) {
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	fmt.Fprintf(out, "RabbitMQ %s (%s)\n", broker.Version, broker.Kind)
	conn, err := reconnect.Dial(ctx, broker.URL, reconnect.Config{Name: "example-deadletters", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return demo(ctx, conn, "demo."+uuid.NewString()[:8], out)
}

// demoLimit is how long it may take; it needs about two seconds.
const demoLimit = time.Minute

func demo(ctx context.Context, conn *reconnect.Conn, name string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	d := graveyard{conn: conn, queue: workqueue.Queue{Name: name, TTL: time.Hour}, policy: retry.Policy{MaxAttempts: 2, InitialDelay: 10 * time.Millisecond}}
	defer func() { err = errors.Join(err, d.remove()) }()
	if err := d.fill(ctx); err != nil {
		return err
	}
	for _, line := range []string{
		"count QUEUE",
		"skip QUEUE",
		"list QUEUE",
		"show -id hostile QUEUE",
		"redrive -reason rejected -dry-run QUEUE",
		"redrive -reason rejected QUEUE",
		"redrive -n 1 QUEUE",
		"discard -all QUEUE",
		"list QUEUE",
	} {
		fmt.Fprintf(out, "\n$ deadletters %s\n", line)
		args := strings.Fields(strings.ReplaceAll(line, "QUEUE", name))
		o, err := parse(args[0], args[1:], out)
		if err != nil {
			return err
		}
		if err := o.on(ctx, conn, out); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

// graveyard is a queue with dead letters of all kinds.
type graveyard struct {
	conn   *reconnect.Conn
	queue  workqueue.Queue
	policy retry.Policy
}

// hostile is a body, and an error text, that would take over a terminal that printed it.
const hostile = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe \xff\x9b31m"

// fill has a worker fail with all that it is sent.
func (g *graveyard) fill(ctx context.Context) error {
	retrier, err := retry.New(ctx, g.conn, g.queue.Name, g.policy)
	if err != nil {
		return err
	}
	retried := retrier.Handle(func(_ context.Context, d amqp.Delivery) error {
		if d.Type == "refused" {
			return retry.Permanent(errors.New("card refused"))
		}
		return fmt.Errorf("cannot handle: %s", d.Body)
	})
	worker, err := workqueue.NewWorker(g.conn, g.queue, func(ctx context.Context, d amqp.Delivery) error {
		if d.Type == "raw" {
			return errors.New("a handler without a Retrier")
		}
		return retried(ctx, d)
	}, workqueue.WorkerConfig{})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	err = g.send(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// send sends, and waits until all of it is dead.
func (g *graveyard) send(ctx context.Context) error {
	producer, err := workqueue.NewProducer(g.conn, g.queue, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	deep := amqp.Table{"in": "side"}
	for range 60 {
		deep = amqp.Table{"in": deep}
	}
	msgs := []amqp.Publishing{
		{MessageId: "order-1", Type: "raw", Body: []byte(`{"order":1}`)},
		{MessageId: "order-2", Type: "refused", Body: []byte(`{"order":2}`)},
		{MessageId: "order-3", Body: []byte(`{"order":3}`)},
		{MessageId: "hostile", AppId: hostile, Body: []byte("line one\n" + hostile + "\nline three")},
	}
	for _, msg := range msgs {
		if err := producer.Publish(ctx, msg); err != nil {
			return err
		}
	}
	letters, err := retry.NewDeadLetters(g.conn, g.queue.Name)
	if err != nil {
		return err
	}
	if err := g.unreadable(ctx, deep); err != nil {
		return err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	return letters.Watch(ctx, 10*time.Millisecond, func(n int) {
		if n == len(msgs)+1 {
			done()
		}
	})
}

// unreadable puts a message into the dead-letter queue whose headers this library refuses to send.
func (g *graveyard) unreadable(ctx context.Context, headers amqp.Table) error {
	ch, err := g.conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	return ch.PublishWithContext(ctx, "", g.queue.DeadLetterQueue(), true, false, amqp.Publishing{MessageId: "too-deep", Headers: headers})
}

// remove deletes what was declared.
func (g *graveyard) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	topologies := []reconnect.Topology{g.queue.Topology(), g.policy.Topology(g.queue.Name)}
	for _, t := range topologies {
		g.conn.Forget(t)
	}
	ch, err := g.conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	var faults []error
	for _, t := range topologies {
		for _, q := range t.Queues {
			_, err := ch.QueueDelete(q.Name, false, false, false)
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}
