package retry_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// P41: attempts are exact whatever the broker's headers, or ours, say when a message comes in. One that comes in through
// the default exchange under the queue's name may have been ours: its number is believed, within bounds.
func TestForgedHeaders(t *testing.T) {
	t.Parallel()
	const name = "warren-attempt"
	death := func(reason, queue string, count any) amqp.Table {
		return amqp.Table{"x-death": []any{amqp.Table{"queue": queue, "reason": reason, "count": count, "exchange": "", "time": time.Now(),
			"routing-keys": []any{queue}}}, "x-first-death-reason": reason, "x-first-death-queue": queue, "x-first-death-exchange": ""}
	}
	s := newSetup(t)
	q := s.queue.Name
	x := s.exchange(amqp.ExchangeTopic, "#")
	last := quick.MaxAttempts
	v := newVisits()
	s.start(s.retrier(quick).Handle(v.failing(always)), workqueue.WorkerConfig{Concurrency: 4})
	cases := map[string]struct {
		headers amqp.Table
		through string // the exchange
		first   int    // attempt that the first run is
	}{
		"none":                       {nil, "", 1},
		"int64":                      {amqp.Table{name: int64(3)}, "", 3},
		"text":                       {amqp.Table{name: "3"}, "", 3},
		"no number":                  {amqp.Table{name: "three"}, "", 1},
		"negative":                   {amqp.Table{name: int64(-5)}, "", 1},
		"least":                      {amqp.Table{name: int64(math.MinInt64)}, "", 1},
		"huge":                       {amqp.Table{name: int64(math.MaxInt64)}, "", last},
		"huge text":                  {amqp.Table{name: strings.Repeat("9", 18)}, "", last},
		"a table":                    {amqp.Table{name: amqp.Table{name: int64(3)}}, "", 1},
		"huge, by another way":       {amqp.Table{name: int64(math.MaxInt64)}, x, 1},
		"our others, by another way": {amqp.Table{name: int64(3), "warren-exchange": "forged", "warren-routing-key": "forged", "warren-first-failure": "1970-01-01T00:00:00Z"}, x, 1},
		"out of a dead-letter queue": {amqp.Table{name: int64(4), "warren-reason": "exhausted", "warren-first-failure": "1970-01-01T00:00:00Z"}, "", 1},
		"for ever too early":         {amqp.Table{"warren-not-before": "9999-01-01T00:00:00Z", "warren-last-failure": "2020-01-01T00:00:00Z"}, "", 1},
		"x-death rejected":           {death("rejected", q, int64(1000)), "", 1},
		"x-death delivery_limit":     {death("delivery_limit", q, int64(1)), "", 1},
		"x-death expired":            {death("expired", q, int64(-1)), x, 1},
		"x-death expired, delay":     {death("expired", q+".retry.50", "many"), "", 1},
		"x-death maxlen":             {death("maxlen", q, "text"), "", 1},
		"x-delivery-count":           {amqp.Table{"x-delivery-count": int64(20), "x-acquired-count": int64(1 << 40)}, "", 1},
		"x-delivery-count, text":     {amqp.Table{"x-delivery-count": "20"}, "", 1},
	}
	for id, tt := range cases {
		key := q
		if tt.through != "" {
			key = "orders.eu"
		}
		s.raw(tt.through, key, amqp.Publishing{MessageId: id, Headers: tt.headers})
	}
	dead := map[string]amqp.Delivery{}
	for _, d := range s.drain(s.queue.DeadLetterQueue(), len(cases)) {
		dead[d.MessageId] = d
	}
	s.empty(quick)
	for id, tt := range cases {
		runs := v.of(id)
		require.Len(t, runs, last-tt.first+1, id)
		for i, run := range runs {
			require.Equal(t, tt.first+i, run.Attempt, id)
			if tt.through != "" {
				require.Equal(t, x, run.Exchange, id)
				require.Equal(t, "orders.eu", run.RoutingKey, id)
			}
		}
		require.Contains(t, dead, id)
		require.Equal(t, "exhausted", dead[id].Headers["warren-reason"], id)
		require.EqualValues(t, last, dead[id].Headers[name], id)
	}
}

// Once our own header is intact a message has at most MaxAttempts runs more, whatever it was before.
func TestForgedOnTheWay(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	s.start(s.retrier(quick).Handle(v.failing(always)), workqueue.WorkerConfig{})
	for _, forged := range []any{nil, "0", int64(-1 << 60), int64(2)} {
		id := testenv.Name(t, "m")
		headers := amqp.Table{"warren-routing-key": "orders.eu", "warren-exchange": "orders"}
		if forged != nil {
			headers["warren-attempt"] = forged
		}
		s.raw("", s.queue.Name, amqp.Publishing{MessageId: id, Headers: headers})
		testenv.Eventually(t, patience, func() bool { return s.depth(s.queue.DeadLetterQueue()) == 1 }, "dead letter")
		s.drain(s.queue.DeadLetterQueue(), 1)
		require.LessOrEqual(t, len(v.of(id)), quick.MaxAttempts+1, "%v", forged)
	}
}

// A copy whose headers leave no room for ours, or hold what cannot be sent, goes to the dead-letter queue at once, without
// the headers that are not ours.
func TestOversizedHeaders(t *testing.T) {
	t.Parallel()
	deep := amqp.Table{}
	for range 20 {
		deep = amqp.Table{"deeper": deep}
	}
	for name, headers := range map[string]amqp.Table{
		"large": {"large": strings.Repeat("x", 100_000), "small": "s"},
		"deep":  {"large": deep, "small": "s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			v := newVisits()
			h := func(_ context.Context, d amqp.Delivery) error {
				v.add(d)
				return errors.New(strings.Repeat("ü", 100_000))
			}
			s.start(s.retrier(quick).Handle(h), workqueue.WorkerConfig{})
			s.raw("", s.queue.Name, amqp.Publishing{MessageId: "m", Type: "kept", Headers: headers, Body: []byte("body")})
			dead := s.drain(s.queue.DeadLetterQueue(), 1)[0]
			require.Equal(t, "oversized", dead.Headers["warren-reason"])
			require.Equal(t, []any{"large", "small"}, dead.Headers["warren-cut"])
			require.NotContains(t, dead.Headers, "small")
			require.Equal(t, "kept", dead.Type)
			require.Equal(t, "body", string(dead.Body))
			require.Equal(t, 1, retry.InfoOf(dead).Attempt)
			require.Len(t, v.of("m"), 1)
			require.LessOrEqual(t, len(retry.InfoOf(dead).LastError), 1024)
			s.empty(quick)
		})
	}
}
