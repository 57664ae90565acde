package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// retries is the chapter on what is tried again, and what is not.
func retries(ctx context.Context, t *tour) error {
	return t.stage(ctx, "calls", func(ctx context.Context, a *audience) error {
		e := &exchangeOffice{tour: t, audience: a, queue: workqueue.Queue{Name: t.name("calls")}, next: map[string]time.Time{},
			policy: retry.Policy{MaxAttempts: 4, InitialDelay: 100 * time.Millisecond, Multiplier: 2}}
		if err := e.open(ctx); err != nil {
			return err
		}
		if err := e.busyLines(ctx); err != nil {
			return err
		}
		return e.wrongNumbers(ctx)
	})
}

// exchangeOffice puts calls through, and tries again where the line is busy. The type of a message says what its line does.
type exchangeOffice struct {
	*tour
	*audience
	queue    workqueue.Queue
	policy   retry.Policy
	producer *workqueue.Producer
	dead     *retry.DeadLetters

	mu       sync.Mutex // of all below
	attempts int
	early    int
	next     map[string]time.Time // the earliest moment of a call's next attempt
	repaired bool
}

func (e *exchangeOffice) open(ctx context.Context) (err error) {
	if e.producer, err = workqueue.NewProducer(e.conn, e.queue, reconnect.PublisherConfig{}); err != nil {
		return err
	}
	if e.dead, err = retry.NewDeadLetters(e.conn, e.queue.Name); err != nil {
		return err
	}
	e.clean = append(e.clean, e.policy.Topology(e.queue.Name))
	retrier, err := retry.New(ctx, e.conn, e.queue.Name, e.policy)
	if err != nil {
		return err
	}
	worker, err := workqueue.NewWorker(e.conn, e.queue, retrier.Handle(e.connect), workqueue.WorkerConfig{Concurrency: 4})
	_, err = e.add(ctx, e.queue, worker, err)
	return err
}

// connect is the handler.
func (e *exchangeOffice) connect(ctx context.Context, d amqp.Delivery) error {
	attempt := retry.InfoOf(d).Attempt
	if err := e.dial(d, attempt); err != nil {
		return err
	}
	return e.note("connected")(ctx, d)
}

func (e *exchangeOffice) dial(d amqp.Delivery, attempt int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts++
	if time.Now().Before(e.next[d.MessageId]) {
		e.early++
	}
	if delays := e.policy.Delays(); attempt <= len(delays) {
		e.next[d.MessageId] = time.Now().Add(delays[attempt-1])
	}
	busy, _ := strconv.Atoi(d.Type) // so many times
	switch {
	case d.Type == "no such number" && !e.repaired:
		return retry.Permanent(errors.New("no such number"))
	case d.Type == "always busy" && !e.repaired, attempt <= busy:
		return errors.New("busy")
	case d.Type == "short circuit" && !e.repaired:
		panic("short circuit")
	}
	return nil
}

func (e *exchangeOffice) call(ctx context.Context, id, line string) error {
	return e.producer.Publish(ctx, amqp.Publishing{MessageId: id, Type: line})
}

func (e *exchangeOffice) busyLines(ctx context.Context) error {
	const calls = 12
	e.step("Later, and later again")
	e.say("%d calls; the line of each is busy up to three times. A copy waits in a queue for its delay, %v, and comes", calls, e.policy.Delays())
	e.say("back; the worker is free meanwhile. The copy is confirmed before the original is acknowledged:")
	want := 0
	for i := range calls {
		if err := e.call(ctx, "call "+strconv.Itoa(i), strconv.Itoa(i%4)); err != nil {
			return err
		}
		want += 1 + i%4
	}
	if err := e.await(ctx, calls, "connected"); err != nil {
		return err
	}
	n, _ := e.count("connected")
	e.mu.Lock()
	attempts, early := e.attempts, e.early
	e.mu.Unlock()
	e.figure("calls put through", n, calls)
	e.figure("attempts", attempts, want)
	e.figure("of them before their time", early, 0)
	return nil
}

func (e *exchangeOffice) wrongNumbers(ctx context.Context) error {
	e.step("What is given up, and what becomes of it")
	e.say("A number that does not exist is not tried again, a line that stays busy for %d attempts in all, and a handler that", e.policy.MaxAttempts)
	e.say("panics takes nobody along. They wait in the dead-letter queue, with what is known of them:")
	lines := []string{"no such number", "always busy", "short circuit"}
	for _, line := range lines {
		if err := e.call(ctx, line, line); err != nil {
			return err
		}
	}
	if err := e.untilDead(ctx, len(lines)); err != nil {
		return err
	}
	reasons := map[string]string{}
	for l, err := range e.dead.All(ctx) {
		if err != nil {
			return err
		}
		e.say("   %-16q %-11s attempts %d, the last: %q", l.MessageId, l.Reason, l.Attempt, l.LastError)
		reasons[l.MessageId] = l.Reason
	}
	for i, want := range []string{"permanent", "exhausted", "panic"} {
		e.text("reason of "+strconv.Quote(lines[i]), reasons[lines[i]], want)
	}
	e.say("\nThe lines are repaired, and the calls sent back. They begin with their first attempt:")
	e.mu.Lock()
	e.repaired = true
	e.mu.Unlock()
	n, err := e.dead.Redrive(ctx, retry.Selection{})
	if err != nil {
		return err
	}
	e.figure("sent back", n, len(lines))
	if err := e.await(ctx, 12+len(lines), "connected"); err != nil {
		return err
	}
	left, err := e.dead.Count(ctx)
	if err != nil {
		return err
	}
	e.figure("left in the dead-letter queue", left, 0)
	return nil
}

// untilDead waits until the dead-letter queue holds n messages.
func (e *exchangeOffice) untilDead(ctx context.Context, n int) error {
	for {
		count, err := e.dead.Count(ctx)
		if err != nil || count == n {
			return err
		}
		pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d dead letters: %w", count, n, ctx.Err())
		}
	}
}
