package consistenthash_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

type permanent struct{}

func (permanent) Error() string   { return "never" }
func (permanent) Permanent() bool { return true }

type later struct{}

func (later) Error() string             { return "in a while" }
func (later) RetryAfter() time.Duration { return 300 * time.Millisecond }

// A failure is tried again in place, as often and with the pauses that are set; then the message is dead-lettered and the key
// goes on.
func TestFailuresAreTriedAgainInPlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		fail     func(ctx context.Context, attempt int) error
		attempts int
		dead     int
		least    time.Duration // between the first attempt and the next message
	}{
		{"an error", func(context.Context, int) error { return errors.New("no") }, 3, 1, 60 * time.Millisecond},
		{"a panic", func(context.Context, int) error { panic("no") }, 3, 1, 60 * time.Millisecond},
		{"a timeout", func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }, 3, 1, 360 * time.Millisecond},
		{"a permanent error", func(context.Context, int) error { return fmt.Errorf("well: %w", permanent{}) }, 1, 1, 0},
		{"mended in time", func(_ context.Context, attempt int) error {
			if attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		}, 3, 0, 60 * time.Millisecond},
		{"later", func(_ context.Context, attempt int) error {
			if attempt == 1 {
				return later{}
			}
			return nil
		}, 2, 0, 300 * time.Millisecond},
		{"not now does not count", func(_ context.Context, attempt int) error {
			if attempt <= 5 {
				return notNow{}
			}
			return errors.New("no")
		}, 8, 1, 160 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newSetup(t, consistenthash.Partitions{Count: 2}), newLedger()
			s.publish([]string{"k"}, 0, 3)
			var mu sync.Mutex
			var began, next time.Time
			c := s.consumer(s.conn, func(ctx context.Context, d amqp.Delivery) error {
				n := l.begin(d)
				mu.Lock()
				switch {
				case string(d.Body) == "1" && n == 1:
					began = time.Now()
				case string(d.Body) == "2":
					next = time.Now()
				}
				mu.Unlock()
				if string(d.Body) == "1" {
					return tt.fail(ctx, n)
				}
				return nil
			}, consistenthash.ConsumerConfig{MaxAttempts: 3, InitialDelay: 20 * time.Millisecond, MaxDelay: 40 * time.Millisecond, HandlerTimeout: 100 * time.Millisecond})
			run(t, c)
			s.settled()
			testenv.Eventually(t, patience, func() bool { return l.count() == 3 && s.depth(s.partitions.DeadLetterQueue()) == tt.dead }, "all is done")
			require.Equal(t, tt.attempts, l.startsOf("k", 1))
			require.Equal(t, 1, l.startsOf("k", 2))
			l.inOrder(t, []string{"k"}, 3)
			mu.Lock()
			defer mu.Unlock()
			require.GreaterOrEqual(t, next.Sub(began), tt.least)
			testenv.Eventually(t, patience, func() bool { return sum(c.Counts()) == int64(3-tt.dead) }, "counted")
		})
	}
}

// A dead letter that is sent back to its queue still has its key, although its routing key is another.
func TestKeySurvivesTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 2, Plugin: true})
	s.publish([]string{"k"}, 0, 1)
	seen := make(chan string, 10)
	var failed atomic.Bool // the two may be of different partitions
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error {
		seen <- d.RoutingKey
		if failed.CompareAndSwap(false, true) {
			return permanent{}
		}
		return nil
	}, consistenthash.ConsumerConfig{})
	require.Equal(t, "k", receive(t, seen))
	testenv.Eventually(t, patience, func() bool { return s.depth(s.partitions.DeadLetterQueue()) == 1 }, "dead-lettered")
	ch, err := s.conn.Channel(t.Context())
	require.NoError(t, err)
	defer ch.Close()
	d, ok, err := ch.Get(s.partitions.DeadLetterQueue(), true)
	require.NoError(t, err)
	require.True(t, ok)
	pub, err := s.conn.NewPublisher(reconnect.PublisherConfig{})
	require.NoError(t, err)
	require.NoError(t, pub.Publish(t.Context(), "", s.partitions.Queue(0), amqp.Publishing{Headers: amqp.Table{"warren-key": d.Headers["warren-key"]}}))
	require.Equal(t, "k", receive(t, seen))
}

func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		require.Fail(t, "nothing came")
	}
	return v
}

// The mark by which a retry wrapper knows that it must not send a copy behind the later messages of its key. The state says why the
// partition stands, and a stop does not wait for the pause.
func TestHandlerIsMarkedAsOrdered(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 1})
	s.publish([]string{"k"}, 0, 1)
	marks := make(chan string, 10)
	stop := s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		queue, _ := consume.QueueOf(ctx)
		marks <- fmt.Sprint(queue == s.partitions.Queue(0), consume.Ordered(ctx), d.Ack(false) != nil)
		return errors.New("the ledger is closed")
	}, consistenthash.ConsumerConfig{InitialDelay: time.Minute, MaxDelay: time.Minute, MaxAttempts: 2})
	require.Equal(t, "true true true", receive(t, marks))
	testenv.Eventually(t, patience, func() bool {
		return slices.ContainsFunc(s.conn.State(), func(st reconnect.State) bool {
			return st.Name == s.partitions.Queue(0) && st.Phase == "waiting" && contains(st.Reason, "attempt 1 of 2 failed: the ledger is closed")
		})
	}, "the state says why it waits")
	began := time.Now()
	require.NoError(t, stop())
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, 1, s.depth(s.partitions.Queue(0)), "handed back")
}

// A message that cannot be hashed, or encoded, is not sent, and harms no other.
func TestBadInputFailsAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	long := string(make([]byte, 256))
	plain := newSetup(t, consistenthash.Partitions{Count: 2})
	header := newSetup(t, consistenthash.Partitions{Count: 2, Plugin: true, HashHeader: "customer"})
	property := newSetup(t, consistenthash.Partitions{Count: 2, Plugin: true, HashProperty: "correlation_id"})
	for _, tt := range []struct {
		s    *setup
		key  string
		msg  amqp.Publishing
		want string
	}{
		{plain, "", amqp.Publishing{}, "key: empty"},
		{plain, long, amqp.Publishing{}, "key"},
		{plain, "k", amqp.Publishing{Headers: amqp.Table{"bad": []string{"x"}}}, "bad"},
		{header, "k", amqp.Publishing{}, `"customer"`},
		{header, "k", amqp.Publishing{Headers: amqp.Table{"customer": int64(7)}}, "must be a string"},
		{property, "k", amqp.Publishing{}, "CorrelationId"},
	} {
		err := tt.s.publisher().Publish(ctx, tt.key, tt.msg)
		require.ErrorContains(t, err, tt.want)
		var p interface{ Permanent() bool }
		require.ErrorAs(t, err, &p)
		require.True(t, p.Permanent())
	}
	require.NoError(t, header.publisher().Publish(ctx, "", amqp.Publishing{Headers: amqp.Table{"customer": "7"}}))
	require.NoError(t, property.publisher().Publish(ctx, "", amqp.Publishing{CorrelationId: "7"}))
	require.ErrorContains(t, plain.publisher().PublishJSON(ctx, "k", func() {}), "unsupported")

	var each reconnect.BatchError
	require.ErrorAs(t, plain.publisher().PublishBatch(ctx, []reconnect.Message{message("k", 0), message("", 1), message("k", 2)}), &each)
	require.Len(t, each, 3)
	require.NoError(t, each[0])
	require.ErrorContains(t, each[1], "key: empty")
	require.NoError(t, each[2])
	require.ErrorAs(t, plain.publisher().PublishBatch(ctx, []reconnect.Message{message("", 1)}), &each)
	require.ErrorAs(t, plain.publisher().PublishBatch(ctx, []reconnect.Message{{Exchange: "other", Key: "k"}}), &each)
	require.ErrorContains(t, each[0], "Exchange")
	require.NoError(t, plain.publisher().PublishBatch(ctx, nil))

	headers := amqp.Table{"mine": "x"}
	require.NoError(t, plain.publisher().Publish(ctx, "k", amqp.Publishing{Headers: headers}))
	require.Equal(t, amqp.Table{"mine": "x"}, headers, "the caller's headers stay as they are")
}

func TestJSON(t *testing.T) {
	type change struct{ To string }
	var got change
	h := consistenthash.JSON(func(_ context.Context, c change) error { got = c; return nil })
	require.NoError(t, h(t.Context(), amqp.Delivery{Body: []byte(`{"To":"b-17"}`)}))
	require.Equal(t, change{"b-17"}, got)
	for _, body := range []string{"", "null", `{"To":"x"} {}`, `[1]`} {
		err := h(t.Context(), amqp.Delivery{Body: []byte(body)})
		var p interface{ Permanent() bool }
		require.ErrorAs(t, err, &p, "%q", body)
		require.True(t, p.Permanent())
	}
}
