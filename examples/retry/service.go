package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// quiet keeps the library's log, a line for each failure, out of the story, which tells them itself.
var quiet = slog.New(slog.DiscardHandler)

// payment is the message.
type payment struct {
	Number         int
	Card, Currency string
}

// bank takes payments.
type bank struct {
	answers, knowsEuro atomic.Bool
}

var errNoAnswer = errors.New("the bank does not answer")

func (b *bank) charge(p payment) error {
	switch {
	case !b.answers.Load():
		return errNoAnswer // may pass: an error like any other
	case p.Card == "stolen":
		return retry.Permanent(errors.New("card refused: stolen"))
	case p.Currency == "EURO" && !b.knowsEuro.Load():
		return retry.Permanent(fmt.Errorf("unknown currency %q", p.Currency))
	}
	return nil
}

// service is the payment service: a queue, a worker whose failures are tried again, and the tool for its dead letters.
type service struct {
	conn     *reconnect.Conn
	queue    workqueue.Queue
	producer *workqueue.Producer
	dead     *retry.DeadLetters
	stop     func() error
	bank     bank
	out      io.Writer

	mu       sync.Mutex // of all below, and out
	attempts map[int]int
	paid     map[int]bool
	early    int               // attempts that came before their time
	last     map[int]time.Time // when the last one ended
	changed  chan struct{}     // closed, and made anew, with each attempt
}

// open starts the service.
func open(ctx context.Context, conn *reconnect.Conn, name string, out io.Writer) (*service, error) {
	s := &service{conn: conn, queue: workqueue.Queue{Name: name}, out: out,
		attempts: map[int]int{}, paid: map[int]bool{}, last: map[int]time.Time{}, changed: make(chan struct{})}
	var err error
	if s.producer, err = workqueue.NewProducer(conn, s.queue, reconnect.PublisherConfig{}); err != nil {
		return nil, err
	}
	if s.dead, err = retry.NewDeadLetters(conn, name); err != nil {
		return nil, err
	}
	retrier, err := retry.New(ctx, conn, name, policy)
	if err != nil {
		return nil, err
	}
	worker, err := workqueue.NewWorker(conn, s.queue, retrier.Handle(s.handle), workqueue.WorkerConfig{Concurrency: 3})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	s.stop = func() error { cancel(); return <-ended }
	select {
	case <-worker.Ready():
		return s, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.close())
	}
}

func (s *service) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// handle is the worker's handler. It wants to know which attempt this is, so it takes the delivery.
func (s *service) handle(_ context.Context, d amqp.Delivery) error {
	var p payment
	if err := json.Unmarshal(d.Body, &p); err != nil {
		return retry.Permanent(err)
	}
	err := s.bank.charge(p)
	s.note(p, retry.InfoOf(d), err)
	return err
}

// note tells of an attempt.
func (s *service) note(p payment, info retry.Info, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waited := ""
	if before, ok := s.last[p.Number]; ok && info.Attempt > 1 {
		gap := time.Since(before)
		waited = fmt.Sprintf(", %.1f s later", gap.Seconds())
		if gap < policy.Delays()[info.Attempt-2] {
			s.early++
		}
	}
	outcome := "paid"
	if err != nil {
		outcome = err.Error()
	}
	fmt.Fprintf(s.out, "   payment %d, attempt %d%-13s %s\n", p.Number, info.Attempt, waited+":", outcome)
	s.attempts[p.Number]++
	s.paid[p.Number] = s.paid[p.Number] || err == nil
	s.last[p.Number] = time.Now()
	close(s.changed)
	s.changed = make(chan struct{})
}

// pay hands in payments.
func (s *service) pay(ctx context.Context, payments ...payment) error {
	for _, p := range payments {
		body, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := s.producer.Publish(ctx, amqp.Publishing{MessageId: fmt.Sprintf("payment %d", p.Number), Body: body}); err != nil {
			return err
		}
	}
	return nil
}

// until waits until cond, which is called with the lock held, is true.
func (s *service) until(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		ok, changed := cond(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// list shows the dead letters, once there are n. What comes out of a message is quoted.
func (s *service) list(ctx context.Context, n int) error {
	for {
		count, err := s.dead.Count(ctx)
		if err != nil {
			return err
		}
		if count == n {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d dead letters instead of %d: %w", count, n, ctx.Err())
		}
	}
	for l, err := range s.dead.All(ctx) {
		if err != nil {
			return err
		}
		s.say("   dead letter %q: %s after %d attempt: %q", l.MessageId, l.Reason, l.Attempt, l.LastError)
	}
	return nil
}

// check compares the figures with what they must be.
func (s *service) check(ctx context.Context) error {
	left, err := s.dead.Count(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	paid := 0
	for _, ok := range s.paid {
		if ok {
			paid++
		}
	}
	if paid != 4 || s.attempts[4] != 1 || s.attempts[5] != 2 || s.early != 0 || left != 0 {
		return fmt.Errorf("%d paid, attempts %v, %d of them early, %d dead letters left", paid, s.attempts, s.early, left)
	}
	fmt.Fprintf(s.out, "\n4 of 5 payments are paid, the refused one was tried once, and no attempt came before its time.\n")
	return nil
}

// close ends the service and deletes what it had declared.
func (s *service) close() error {
	faults := []error{s.stop()}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, t := range []reconnect.Topology{s.queue.Topology(), policy.Topology(s.queue.Name)} {
		s.conn.Forget(t) // a reconnect must not make it anew
		ch, err := s.conn.Channel(ctx)
		if err != nil {
			return errors.Join(append(faults, err)...)
		}
		for _, q := range t.Queues {
			_, err := ch.QueueDelete(q.Name, false, false, false)
			faults = append(faults, err)
		}
		faults = append(faults, ch.Close())
	}
	return errors.Join(faults...)
}
