package retry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	now := time.Now()
	boom := errors.New("boom")
	first := now.Add(-time.Minute)
	for name, tt := range map[string]struct {
		policy  Policy
		message amqp.Delivery
		attempt int
		err     error
		delay   time.Duration // 0: dead letter
		reason  string
		until   time.Duration // notBefore, from now
	}{
		"first":                      {attempt: 1, err: boom, delay: time.Second},
		"second":                     {attempt: 2, err: boom, delay: 5 * time.Second},
		"last":                       {attempt: 6, err: boom, reason: "exhausted"},
		"beyond":                     {attempt: 99, err: boom, reason: "exhausted"},
		"no limit":                   {policy: Policy{MaxAttempts: -1}, attempt: maxAttempt, err: boom, delay: 10 * time.Minute},
		"at least 20s":               {attempt: 1, err: After(boom, 20*time.Second), delay: 25 * time.Second},
		"exactly 25s":                {attempt: 1, err: fmt.Errorf("429: %w", After(boom, 25*time.Second)), delay: 25 * time.Second},
		"a moment":                   {attempt: 5, err: After(boom, 1), delay: time.Second},
		"not at all":                 {attempt: 2, err: After(boom, -1), delay: 5 * time.Second},
		"an hour":                    {attempt: 1, err: After(boom, time.Hour), delay: 10 * time.Minute, until: time.Hour},
		"after, but it was the last": {attempt: 6, err: After(boom, time.Second), reason: "exhausted"},
		"permanent before after":     {attempt: 1, err: Permanent(After(boom, time.Second)), reason: "permanent"},
		"not as old as that":         {policy: Policy{MaxAge: 66 * time.Second}, attempt: 2, err: boom, delay: 5 * time.Second},
		"too old then":               {policy: Policy{MaxAge: 64 * time.Second}, attempt: 2, err: boom, reason: "too-old"},
		"too old in an hour":         {policy: Policy{MaxAge: 30 * time.Minute}, attempt: 1, err: After(boom, time.Hour), reason: "too-old"},
		"lives long enough":          {message: amqp.Delivery{Expiration: "66000"}, attempt: 2, err: boom, delay: 5 * time.Second},
		"does not":                   {message: amqp.Delivery{Expiration: "64000"}, attempt: 2, err: boom, reason: "expired"},
		"no number":                  {message: amqp.Delivery{Expiration: "soon"}, attempt: 2, err: boom, delay: 5 * time.Second},
		"one attempt":                {policy: Policy{MaxAttempts: 1}, attempt: 1, err: boom, reason: "exhausted"},
		"panic":                      {policy: Policy{MaxAttempts: 2}, attempt: 2, err: &panicked{"boom", nil}, reason: "panic"},
		"panic with an error":        {policy: Policy{MaxAttempts: 2}, attempt: 1, err: &panicked{Permanent(boom), nil}, delay: time.Second},
		"plugin":                     {policy: Policy{DelayedPlugin: true}, attempt: 1, err: After(boom, 90*time.Minute+1), delay: 90*time.Minute + time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			r := record{attempt: tt.attempt, first: first}
			v := tt.policy.withDefaults().judge(tt.message, r, tt.err, now)
			require.Equal(t, tt.reason, v.reason)
			require.Equal(t, tt.delay, v.delay)
			require.Equal(t, first, v.first)
			require.Equal(t, now, v.last)
			require.Equal(t, tt.err.Error(), v.err)
			if tt.reason != "" {
				require.Equal(t, tt.attempt, v.attempt, "of a dead letter: the last one made")
				return
			}
			require.Equal(t, tt.attempt+1, v.attempt)
			if tt.until == 0 {
				require.Zero(t, v.notBefore)
			} else {
				require.Equal(t, now.Add(tt.until), v.notBefore)
			}
		})
	}
}

func TestFirstFailureIsNow(t *testing.T) {
	now := time.Now()
	v := Policy{}.withDefaults().judge(amqp.Delivery{}, record{attempt: 1}, errors.New("boom"), now)
	require.Equal(t, now, v.first)
}

func TestOnArrival(t *testing.T) {
	now := time.Now()
	p := Policy{}.withDefaults()
	decide := func(r record, expiration string) (verdict, bool) {
		return p.onArrival(amqp.Delivery{Expiration: expiration}, r, now)
	}

	_, is := decide(record{attempt: 1}, "")
	require.False(t, is)
	_, is = decide(record{attempt: 2, first: now.Add(-time.Hour), notBefore: now}, "")
	require.False(t, is, "due")
	_, is = decide(record{attempt: 1}, "1")
	require.False(t, is, "how long it lived before its first failure is the broker's business")

	v, is := decide(record{attempt: 2, first: now, last: now, notBefore: now.Add(7 * time.Minute)}, "")
	require.True(t, is)
	require.Equal(t, verdict{record: record{attempt: 2, first: now, last: now, notBefore: now.Add(7 * time.Minute)},
		delay: 10 * time.Minute, waiting: true}, v, "not counted")
	v, _ = decide(record{attempt: 2, first: now, last: now, notBefore: now.Add(time.Hour)}, "")
	require.Equal(t, 10*time.Minute, v.delay, "and again after that")

	v, is = decide(record{attempt: 3, first: now.Add(-time.Minute)}, "59000")
	require.True(t, is)
	require.Equal(t, "expired", v.reason)
	require.Equal(t, 2, v.attempt)
}

// However long a delay is asked for, what is found is not shorter, or said not to be enough.
func TestAtLeast(t *testing.T) {
	for _, asked := range []time.Duration{1, time.Millisecond, time.Millisecond + 1, time.Minute, maxDelay, maxDelay + 1, math.MaxInt64} {
		for name, p := range map[string]Policy{"queues": {}, "plugin": {DelayedPlugin: true}, "none": {MaxAttempts: 1}} {
			delay, enough := p.withDefaults().atLeast(asked)
			require.Equal(t, enough, delay >= asked, "%s: %v for %v", name, delay, asked)
			require.GreaterOrEqual(t, delay, time.Duration(0), "%s: for %v", name, asked)
			require.LessOrEqual(t, delay, maxDelay, "%s: for %v", name, asked)
		}
	}
}

// brokenError panics when it is asked what it says, as a nil pointer that was returned for an error may.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

func TestErrorWithoutWords(t *testing.T) {
	var missing *brokenError
	for name, err := range map[string]error{"plain": missing, "wrapped": fmt.Errorf("charge: %w", missing), "after": After(missing, time.Second)} {
		v := Policy{}.withDefaults().judge(amqp.Delivery{}, record{attempt: 1}, err, time.Now())
		require.Equal(t, 2, v.attempt, name)
		require.NotEmpty(t, v.err, name)
		require.NotEmpty(t, (&notNow{"the handler was cut off", err}).Error(), name)
	}
}

// What the log says of a failure is how long its message is not handled, in however many delays that is.
func TestLoggedDelay(t *testing.T) {
	now := time.Now()
	p := Policy{}.withDefaults()
	for asked, want := range map[time.Duration]time.Duration{0: time.Second, 3 * time.Second: 5 * time.Second, time.Hour: time.Hour} {
		require.Equal(t, want, p.judge(amqp.Delivery{}, record{attempt: 1}, After(errors.New("no"), asked), now).pause(), "%v", asked)
	}
}

// A jittered delay is one of those that have a queue, and never shorter than the delay.
func TestJitter(t *testing.T) {
	p := Policy{MaxAttempts: 2, Jitter: 0.3}.withDefaults()
	seen := map[time.Duration]int{}
	for range 1000 {
		v := p.judge(amqp.Delivery{}, record{attempt: 1}, errors.New("boom"), time.Now())
		seen[v.delay]++
	}
	require.Len(t, seen, spread)
	for _, d := range p.queues() {
		require.Greater(t, seen[d], 150, "%v", d)
	}
	p.DelayedPlugin = true
	for range 1000 {
		d := p.jittered(time.Second)
		require.True(t, d >= time.Second && d <= 1300*time.Millisecond && d%time.Millisecond == 0, "%v", d)
	}
	require.Equal(t, []time.Duration{time.Millisecond}, Policy{Jitter: 0.5}.steps(time.Millisecond), "less than a millisecond is none")
	require.Equal(t, []time.Duration{maxDelay}, Policy{Jitter: 1}.steps(maxDelay))
}

func TestErrors(t *testing.T) {
	require.NoError(t, Permanent(nil))
	require.NoError(t, After(nil, time.Second))
	boom := errors.New("boom")
	err := fmt.Errorf("charge: %w", After(boom, time.Minute))
	require.ErrorIs(t, err, boom)
	require.EqualError(t, err, "charge: boom")
	require.Equal(t, time.Minute, retryAfter(err))
	require.EqualValues(t, maxDelay, retryAfter(After(boom, 1<<62)), "bounded")
	require.True(t, isPermanent(fmt.Errorf("charge: %w", Permanent(boom))))
	require.False(t, isPermanent(boom))
	require.True(t, isNotNow(&notNow{"no", Permanent(boom)}))
	require.False(t, isNotNow(&panicked{&notNow{why: "no"}, nil}), "what a handler panics with steers nothing")
}

func TestErrorOfEach(t *testing.T) {
	boom, bang := errors.New("boom"), errors.New("bang")
	require.Equal(t, []error{nil, nil}, errorOfEach(nil, 2))
	require.Equal(t, []error{boom, boom}, errorOfEach(boom, 2))
	joined := errors.Join(boom, bang)
	require.Equal(t, []error{boom, bang}, errorOfEach(fmt.Errorf("batch: %w", joined), 2))
	require.Equal(t, []error{joined, joined, joined}, errorOfEach(joined, 3))
}

// Two calls for one delivery are told from two deliveries, also of channels that begin with the same tag.
func TestDoubts(t *testing.T) {
	var s doubts
	a, b := &acknowledger{1}, &acknowledger{2}
	d := amqp.Delivery{Acknowledger: a, ConsumerTag: "c", DeliveryTag: 1}
	s.keep(&d, verdict{id: "kept"})
	for _, other := range []amqp.Delivery{
		{Acknowledger: b, ConsumerTag: "c", DeliveryTag: 1}, {Acknowledger: a, ConsumerTag: "d", DeliveryTag: 1},
		{Acknowledger: a, ConsumerTag: "c", DeliveryTag: 2}, {ConsumerTag: "c", DeliveryTag: 1}, {},
		{Acknowledger: slippery{nil}, DeliveryTag: 1},
	} {
		_, ok := s.take(&other)
		require.False(t, ok)
	}
	again := d
	v, ok := s.take(&again)
	require.True(t, ok)
	require.Equal(t, "kept", v.id)
	_, ok = s.take(&d)
	require.False(t, ok, "once")

	s.keep(&amqp.Delivery{}, verdict{})
	s.keep(&amqp.Delivery{Acknowledger: slippery{nil}, DeliveryTag: 1}, verdict{})
	require.Empty(t, s.of, "what cannot be told apart is not remembered")
	for i := range uint64(2 * maxDoubts) {
		s.keep(&amqp.Delivery{Acknowledger: a, DeliveryTag: i + 1}, verdict{})
	}
	require.Len(t, s.of, maxDoubts)
	for id, old := range s.of {
		old.at = old.at.Add(-2 * doubtLife)
		s.of[id] = old
	}
	s.swept = time.Time{}
	s.keep(&d, verdict{})
	require.Len(t, s.of, 1, "old ones are dropped")
}

type acknowledger struct{ n int }

func (*acknowledger) Ack(uint64, bool) error        { return nil }
func (*acknowledger) Nack(uint64, bool, bool) error { return nil }
func (*acknowledger) Reject(uint64, bool) error     { return nil }

// slippery cannot be compared.
type slippery struct{ _ []int }

func (slippery) Ack(uint64, bool) error        { return nil }
func (slippery) Nack(uint64, bool, bool) error { return nil }
func (slippery) Reject(uint64, bool) error     { return nil }

// A handler's own deadline does not keep its message from being copied; the end of its channel does.
func TestCopyContext(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	<-late.Done()
	ctx, done := copyContext(late)
	require.NoError(t, ctx.Err())
	done()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	ctx, done = copyContext(gone)
	require.Error(t, ctx.Err())
	done()
}
