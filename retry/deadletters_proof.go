package retry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// minDeliveryLimit is the least limit with which a queue may be looked into: each look at a message counts.
const minDeliveryLimit = 1000

// kind is what was proven of a dead-letter queue.
type kind struct {
	quorum bool
	limit  int64 // how often a message may be given back
}

// proven is prove, again while connections are lost.
func (l *DeadLetters) proven(ctx context.Context) (k kind, err error) {
	for {
		k, err = l.prove(ctx)
		var broker *amqp.Error
		if !errors.As(err, &broker) || isPermanent(err) || errors.Is(err, reconnect.ErrClosed) || ctx.Err() != nil {
			return k, err
		}
		switch broker.Code {
		case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
			return k, err
		}
		if err := pause(ctx, onItsWay); err != nil {
			return k, err
		}
	}
}

// prove finds out what kind of queue the dead-letter queue is. That a declaration is accepted proves it: the broker compares
// the arguments. What its refusal says is only a hint at what to declare next.
func (l *DeadLetters) prove(ctx context.Context) (kind, error) {
	name := deadLetterQueue(l.queue)
	if _, err := l.conn.Inspect(ctx, name); err != nil { // so that nothing is created
		return kind{}, err
	}
	limit := int64(dlqDeliveryLimit)
	err := l.compare(ctx, name, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-delivery-limit": limit})
	if err == nil {
		return kind{quorum: true, limit: limit}, nil
	}
	var differs *reconnect.TopologyError
	if !errors.As(err, &differs) {
		return kind{}, err
	}
	if k, args := likely(differs); args != nil {
		var again *reconnect.TopologyError
		if second := l.compare(ctx, name, args); second == nil {
			return k, nil
		} else if !errors.As(second, &again) { // a connection that is lost says nothing about the queue
			return kind{}, second
		}
	}
	return kind{}, fmt.Errorf("it might lose messages that are looked at, so nothing was taken: %w", err)
}

// likely is the other kind that will do, if the queue may be of one, and the arguments to compare it with.
func likely(differs *reconnect.TopologyError) (kind, amqp.Table) {
	switch differs.Argument {
	case amqp.QueueTypeArg:
		if differs.Existing == amqp.QueueTypeClassic {
			return kind{limit: math.MaxInt64}, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic}
		}
	case "x-delivery-limit":
		if limit, err := strconv.ParseInt(differs.Existing, 10, 64); err == nil && limit >= minDeliveryLimit {
			return kind{quorum: true, limit: limit}, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-delivery-limit": limit}
		}
	}
	return kind{}, nil
}

// compare has the broker compare a queue's arguments with args.
func (l *DeadLetters) compare(ctx context.Context, name string, args amqp.Table) error {
	ch, err := l.conn.Channel(ctx)
	if err != nil {
		return err
	}
	err = call(ctx, func() error {
		defer func() { _ = ch.Close() }() // a refusal has closed it already
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
	switch codeOf(err) {
	case amqp.PreconditionFailed, amqp.AccessRefused:
		return mismatch(name, err)
	}
	return err
}

var inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)'.*?: received (.*?) but current is (.*)$`)

// mismatch makes a TopologyError of the broker's refusal.
func mismatch(queue string, err error) error {
	fault := &reconnect.TopologyError{Entity: "queue " + strconv.Quote(queue), Err: err}
	var refused *amqp.Error
	switch {
	case codeOf(err) == amqp.AccessRefused:
		fault.Argument, fault.Wanted, fault.Existing = "right", fmt.Sprintf("configure on queue '%s'", queue), "none"
	case errors.As(err, &refused):
		if m := inequivalent.FindStringSubmatch(refused.Reason); m != nil {
			fault.Argument, fault.Wanted, fault.Existing = m[1], bare(m[2]), bare(m[3])
		}
	}
	return fault
}

// bare takes a value out of the broker's words: '20', or the value '20' of type 'signedint', or none.
func bare(words string) string {
	if from := strings.IndexByte(words, '\''); from >= 0 {
		if rest, _, ok := strings.Cut(words[from+1:], "'"); ok {
			return rest
		}
	}
	return strings.TrimSpace(words)
}

// classic returns nil when queue is a classic one. It declares it as a quorum queue, which fails with each argument that differs,
// and takes over the argument until it is the type that does.
func (l *DeadLetters) classic(ctx context.Context, queue string) error {
	if _, err := l.conn.Inspect(ctx, queue); err != nil {
		return err
	}
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	for range maxArguments {
		err := l.compare(ctx, queue, args)
		var differs *reconnect.TopologyError
		switch {
		case err == nil:
			return fmt.Errorf("queue %q is a quorum queue: its delivery limit takes the message out", queue)
		case !errors.As(err, &differs) || differs.Argument == "":
			return err
		case differs.Argument == amqp.QueueTypeArg:
			if differs.Existing == amqp.QueueTypeClassic {
				return nil
			}
			return err
		}
		if _, tried := args[differs.Argument]; tried {
			return err
		}
		args[differs.Argument] = value(differs.Existing)
	}
	return fmt.Errorf("queue %q: its type cannot be told", queue)
}

// maxArguments is above the number of arguments that the broker knows.
const maxArguments = 30

// value guesses the value of an argument from the broker's words.
func value(words string) any {
	if n, err := strconv.ParseInt(words, 10, 64); err == nil {
		return n
	}
	switch words {
	case "true", "false":
		return words == "true"
	}
	return words
}
