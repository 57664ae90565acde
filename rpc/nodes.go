package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
)

// nodes knows the classes of addresses that the broker takes. An address of a node that does not exist, or with numbers that
// its Erlang does not have, looks like any other, and RabbitMQ 3.10 answers a publish to it with the end of the connection. So
// the first time that a class comes up it is tried on a connection that nobody else uses.
type nodes struct {
	turn chan struct{} // capacity 1: one is tried at a time

	mu    sync.Mutex
	known map[class]time.Time // until when it is taken for a forgery's; zero: it is taken
}

const (
	maxNodes  = 1000 // remembered
	forgetBad = time.Minute
)

func newNodes() *nodes { return &nodes{turn: make(chan struct{}, 1), known: map[class]time.Time{}} }

// look says what is known of a class.
func (n *nodes) look(of class) (good, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	bad, known := n.known[of]
	if known && !bad.IsZero() && time.Now().After(bad) {
		return false, false
	}
	return bad.IsZero(), known
}

func (n *nodes) learn(of class, good bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.known) >= maxNodes {
		for old, bad := range n.known {
			if !bad.IsZero() {
				delete(n.known, old)
			}
		}
	}
	bad := time.Now().Add(forgetBad)
	if good {
		bad = time.Time{}
	}
	n.known[of] = bad
}

// has reports whether the broker takes an address. Its error says that this could not be found out.
//
// young says that the broker may have only just started; then it may not know its own node yet.
func (n *nodes) has(ctx context.Context, to address, young func() bool) (bool, error) {
	if good, known := n.look(to.class); known {
		return good, nil
	}
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return false, ended(ctx)
	}
	if good, known := n.look(to.class); known {
		return good, nil
	}
	err := report.SenderOf(ctx).Apart(ctx, func(ch *amqp.Channel) error { return try(ctx, ch, to) })
	var refusal *amqp.Error
	if err != nil && !(errors.As(err, &refusal) && refusal.Server && refusal.Code == amqp.InternalError) {
		return false, err
	}
	if err != nil && young() {
		return false, fmt.Errorf("the broker may have only just started: %w", err)
	}
	n.learn(to.class, err == nil)
	return err == nil, nil
}

// try publishes to an address like that.
func try(ctx context.Context, ch *amqp.Channel, to address) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	confirm, err := ch.PublishWithDeferredConfirm("", to.extreme(), false, false, amqp.Publishing{})
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	if err != nil || acked {
		return err
	}
	select {
	case e, ok := <-closed: // the driver sends it before it gives up the confirmations
		if ok && e.Code == amqp.AccessRefused {
			return e
		}
	default:
	}
	return amqp.ErrClosed // the connection, of which the caller knows more
}
