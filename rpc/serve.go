package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// errNobodyWaits is the cause of a handler's context that its caller has cancelled.
var errNobodyWaits = errors.New("the caller has cancelled the call")

// handle is the loop's handler: nil means that the request is done with.
func (s *Server) handle(ctx context.Context, d amqp.Delivery) error {
	to, direct := addressOf(d.ReplyTo)
	if !direct && !s.mayAnswer(d.ReplyTo) {
		s.unanswered.Add(1)
		return nil
	}
	deadline := s.deadline(consume.Arrived(ctx), &d)
	if !time.Now().Before(deadline) {
		s.expired.Add(1)
		return nil
	}
	if direct {
		if is, err := s.isTaken(ctx, to, deadline); err != nil {
			return &later{err, deadline}
		} else if !is {
			s.unanswered.Add(1)
			return nil
		}
	}
	a := answerer{server: s, ctx: context.WithoutCancel(ctx), d: &d, direct: direct, deadline: deadline}
	switch limit := s.limits.MaxBody; {
	case d.Redelivered && !s.mayRepeat(&d):
		a.send(amqp.Publishing{Headers: amqp.Table{headerKind: kindUnknown}})
	case limit > 0 && len(d.Body) > limit:
		a.fail(&RemoteError{Code: codeBadRequest, Message: fmt.Sprintf("body of %d bytes is larger than %d", len(d.Body), limit)})
	default:
		return s.execute(ctx, &a)
	}
	return nil
}

// execute runs the handler and answers.
func (s *Server) execute(outer context.Context, a *answerer) error {
	ctx, end := context.WithDeadline(outer, a.deadline)
	defer end()
	if kindOf(a.d.Headers) == kindCancellable {
		var done func()
		ctx, done = s.cancels.add(ctx, a.d, a.direct)
		defer done()
	}
	returned := false
	defer func() {
		if !returned { // runtime.Goexit: the loop's goroutine ends, and another goes on
			a.fail(&RemoteError{Code: codePanic, Message: "the handler ended its goroutine"})
		}
	}()
	reply, err := s.call(ctx, *a.d)
	returned = true
	switch {
	case context.Cause(ctx) == errNobodyWaits:
		return nil
	case err == nil:
		a.send(reply)
	case isNotNow(err):
		return &later{err, a.deadline}
	case errors.Is(outer.Err(), context.Canceled) && !isPermanent(err) && !isRemote(err):
		return err // it says more about the shutdown, or the lost channel, than about the request
	default:
		told := s.remote(err)
		a.fail(told)
		return &consume.Answered{Word: answeredWith(ctx, told, err), Err: err}
	}
	return nil
}

// call runs the handler. A panic is an error.
func (s *Server) call(ctx context.Context, d amqp.Delivery) (reply amqp.Publishing, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("a handler panicked", "message", d.MessageId, "panic", v, "stack", string(debug.Stack()))
			err = &RemoteError{Code: codePanic, Message: fmt.Sprintf("handler panicked: %v", v)}
		}
	}()
	return s.handler(ctx, d)
}

func isRemote(err error) bool {
	var e *RemoteError
	return errors.As(err, &e)
}

// remote is what the caller is told of err.
func (s *Server) remote(err error) *RemoteError {
	var e *RemoteError
	if errors.As(err, &e) {
		told := *e
		if told.Code == "" {
			told.Code = codeError
		}
		return &told
	}
	return &RemoteError{Code: s.code(err), Message: err.Error()}
}

// code is what ErrorCode says; a panic of it says nothing.
func (s *Server) code(err error) (code string) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("ErrorCode panicked", "panic", v)
		}
		if code == "" {
			code = codeError
		}
	}()
	if s.cfg.ErrorCode == nil {
		return codeError
	}
	return s.cfg.ErrorCode(err)
}

// later has the loop call the handler again, as err says, but not after the deadline only to find that it is over.
type later struct {
	err      error
	deadline time.Time
}

func (e *later) Error() string { return e.err.Error() }
func (e *later) Unwrap() error { return e.err }
func (e *later) NotNow() bool  { return true }

// firstPause is the pause after a "not now" that names no time. It is shorter than the loop's, since somebody waits.
const firstPause = 200 * time.Millisecond

// RetryAfter is how long to wait.
func (e *later) RetryAfter() time.Duration {
	after := firstPause
	var named interface{ RetryAfter() time.Duration }
	if errors.As(e.err, &named) && named.RetryAfter() > 0 {
		after = named.RetryAfter()
	}
	return max(time.Millisecond, min(after, time.Until(e.deadline)))
}

// isTaken reports whether the broker takes an address. Finding out takes time only the first time.
func (s *Server) isTaken(ctx context.Context, to address, deadline time.Time) (bool, error) {
	if good, known := s.nodes.look(to.class); known {
		return good, nil
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return s.nodes.has(ctx, to, s.young.is)
}

// mayAnswer reports whether an answer may go to that queue. Whoever sends a request chooses it, so it must not become the
// way to somebody else's queue, nor a circle through the server's own.
func (s *Server) mayAnswer(to string) bool {
	if to == "" || to == s.queue || strings.HasPrefix(to, directReply) {
		return false
	}
	for _, prefix := range s.cfg.ReplyTo {
		if strings.HasPrefix(to, prefix) {
			return true
		}
	}
	return false
}

// clockSkew is how far the clocks of a client and a server may be apart.
const clockSkew = 30 * time.Second

// deadline is when nobody waits for the answer any more, going by a request that may say anything: what was left of its
// time when it was sent, counted from its arrival here, or the time by the caller's clock if that is clearly over earlier.
func (s *Server) deadline(arrived time.Time, d *amqp.Delivery) time.Time {
	left := s.cfg.MaxDeadline
	if ms, err := strconv.ParseUint(d.Expiration, 10, 63); err == nil && ms < uint64(left.Milliseconds()) {
		left = time.Duration(ms) * time.Millisecond
	}
	deadline := arrived.Add(left)
	if ms, ok := d.Headers[headerDeadline].(int64); ok && ms < deadline.Add(-clockSkew).UnixMilli() {
		return time.UnixMilli(max(0, ms)).Add(clockSkew)
	}
	return deadline
}

// requeue puts a request that no handler has begun with back as a fresh one, at the end of the queue. Sent back by the
// broker it would count as redelivered, and its caller would be told that nobody knows what became of it.
func (s *Server) requeue(ctx context.Context, d amqp.Delivery) error {
	if d.Redelivered {
		return errors.New("another server had it before")
	}
	deadline := s.deadline(time.Now(), &d)
	left := time.Until(deadline)
	if left <= 0 {
		s.expired.Add(1)
		return nil
	}
	msg := wire.Copy(d)
	msg.DeliveryMode, msg.Expiration = max(amqp.Transient, d.DeliveryMode), expiration(left)
	err := s.copies.Publish(ctx, "", s.queue, msg)
	if errors.Is(err, reconnect.ErrRefused) && !s.mayRepeat(&d) {
		return s.refuse(ctx, &d, deadline, err)
	}
	return err
}

// mayRepeat reports whether a request may be executed although another server had it.
func (s *Server) mayRepeat(d *amqp.Delivery) bool {
	return s.cfg.Idempotent || d.Headers[headerIdempotent] == true
}

// refuse tells the caller of a request that does not fit into the queue any more that it was not executed: sent back by the
// broker it would seem to have been.
func (s *Server) refuse(ctx context.Context, d *amqp.Delivery, deadline time.Time, why error) error {
	to, direct := addressOf(d.ReplyTo)
	if good, known := s.nodes.look(to.class); direct && !(known && good) || !direct && !s.mayAnswer(d.ReplyTo) {
		return why
	}
	a := answerer{server: s, ctx: ctx, d: d, direct: direct, deadline: deadline}
	msg := amqp.Publishing{Headers: amqp.Table{headerKind: kindRefused}}
	a.mark(&msg)
	a.publish(msg)
	return nil
}
