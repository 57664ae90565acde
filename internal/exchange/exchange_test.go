package exchange

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func durable() Subscription {
	return Subscription{Exchange: Exchange{Kind: "topic", Name: "events"}, Queue: "billing", Keys: []string{"a", "b"}, KeyField: "Keys", Obsolete: []string{"c"},
		CheckKey: func(string) error { return nil }}
}

func TestDurableTopology(t *testing.T) {
	s := durable()
	s.TTL, s.MaxLength, s.DeliveryLimit, s.Arguments = time.Second, 5, 3, amqp.Table{"x-max-length-bytes": int64(9)}
	require.Equal(t, reconnect.Topology{
		Exchanges: []reconnect.Exchange{{Name: "events", Kind: "topic"}},
		Queues: []reconnect.Queue{
			{Name: "billing.dlq", Arguments: amqp.Table{"x-delivery-limit": int64(1_000_000)}},
			{Name: "billing", Type: "quorum", Arguments: amqp.Table{
				"x-overflow": "reject-publish", "x-delivery-limit": int64(3), "x-max-length": int64(5), "x-message-ttl": int64(1000), "x-max-length-bytes": int64(9),
				"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "billing.dlq", "x-dead-letter-strategy": "at-least-once"}},
		},
		Bindings: []reconnect.Binding{{Exchange: "events", Key: "a", Queue: "billing"}, {Exchange: "events", Key: "b", Queue: "billing"}},
		Obsolete: []reconnect.Binding{{Exchange: "events", Key: "c", Queue: "billing"}},
	}, s.Topology())

	s = durable()
	s.DeadLetterExchange, s.Declare = "dlx", reconnect.Passive
	top := s.Topology()
	require.Equal(t, reconnect.Exchange{Name: "dlx", Kind: "direct", Declare: reconnect.Passive}, top.Exchanges[1])
	require.Contains(t, top.Bindings, reconnect.Binding{Exchange: "dlx", Key: "billing.dlq", Queue: "billing.dlq"})
	require.Equal(t, "dlx", top.Queues[1].Arguments["x-dead-letter-exchange"])
	require.Equal(t, int64(20), top.Queues[1].Arguments["x-delivery-limit"])
	require.Equal(t, reconnect.Passive, top.Queues[0].Declare)

	fanout := Subscription{Exchange: Exchange{Kind: "fanout", Name: "e"}, Queue: "q"}
	require.Equal(t, []reconnect.Binding{{Exchange: "e", Queue: "q"}}, fanout.Topology().Bindings)
}

func TestLiveTopology(t *testing.T) {
	s := Subscription{Exchange: Exchange{Kind: "fanout", Name: strings.Repeat("ü", 120)}, TTL: time.Second, Arguments: amqp.Table{"x-max-length-bytes": int64(9)}}
	require.NoError(t, s.validate(true, reconnect.Active))
	require.Equal(t, reconnect.Topology{Exchanges: []reconnect.Exchange{{Name: s.Exchange.Name, Kind: "fanout"}}}, s.Topology())
	a, b := s.freshName(), s.freshName()
	require.NotEqual(t, a, b)
	require.LessOrEqual(t, len(a), 255)
	require.True(t, strings.HasPrefix(a, strings.Repeat("ü", 100)+".live."), a)
	require.Equal(t, amqp.Table{"x-queue-type": "classic", "x-max-length": int64(10_000), "x-overflow": "drop-head",
		"x-message-ttl": int64(1000), "x-max-length-bytes": int64(9)}, s.live(a).Arguments)
	s.MaxLength = 7
	require.Equal(t, int64(7), s.live(a).Arguments["x-max-length"])

	s = durable()
	s.DeliveryLimit, s.DeadLetterExchange, s.Declare = 1, "dlx", reconnect.Skip
	err := s.validate(true, reconnect.Active)
	for _, field := range []string{"Queue:", "DeliveryLimit:", "DeadLetterExchange:", "Obsolete:", "Declare:"} {
		require.ErrorContains(t, err, field)
	}
}

// An exchange that exists may have a name that cannot be given.
func TestExistingExchange(t *testing.T) {
	e := Exchange{Kind: "topic", Name: "amq.topic"}
	require.ErrorContains(t, e.Validate("Exchange.", reconnect.Active), "Exchange.Name:")
	require.ErrorContains(t, e.Validate("Exchange.", reconnect.Active), "Exchange.Declare: must be Passive, or Skip")
	require.NoError(t, e.Validate("Exchange.", reconnect.Passive))
	e.Declare = reconnect.Skip
	require.NoError(t, e.Validate("Exchange.", reconnect.Active))
	e.Name = ""
	require.ErrorContains(t, e.Validate("Exchange.", reconnect.Active), "Exchange.Name: empty")
}

// What cannot be meant is said with the field's name, in a few words, before anything is declared.
func TestMistakes(t *testing.T) {
	s := durable()
	s.DeadLetterExchange = s.Exchange.Name
	require.EqualError(t, s.validate(false, reconnect.Active), "DeadLetterExchange: is the exchange that is subscribed to")
	s = durable()
	s.Keys = append(s.Keys, strings.Repeat("k", 300))
	s.Obsolete = []string{"a"}
	err := s.validate(false, reconnect.Active)
	require.ErrorContains(t, err, "Keys: number 3: 300 bytes, at most 255")
	require.ErrorContains(t, err, `Obsolete: number 1, "a", is one of Keys, too`)
	require.Less(t, len(err.Error()), 200)
}

func TestOnlyForLive(t *testing.T) {
	_, err := NewSubscriber(nil, "p", durable(), nil, SubscriberConfig{OnGap: func(_, _ time.Time) {}, OnOverflow: func() {}})
	require.ErrorContains(t, err, "conn: nil")
	conn, err := reconnect.Dial(t.Context(), "amqp://localhost:1/", reconnect.Config{Lazy: true})
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = NewSubscriber(conn, "p", durable(), nil, SubscriberConfig{OnGap: func(_, _ time.Time) {}, OnOverflow: func() {}})
	for _, part := range []string{"p: subscriber", "OnGap:", "OnOverflow:", "Handler: missing"} {
		require.ErrorContains(t, err, part)
	}
}

func TestMerge(t *testing.T) {
	foreign, a, b := errors.New("foreign"), errors.New("a"), errors.New("b")
	require.Equal(t, reconnect.BatchError{nil, foreign, nil}, merge(reconnect.BatchError{nil, foreign, nil}, nil))
	require.Equal(t, reconnect.BatchError{a, foreign, nil, foreign, b},
		merge(reconnect.BatchError{nil, foreign, nil, foreign, nil}, reconnect.BatchError{a, nil, b}))
	require.Equal(t, reconnect.BatchError{a, foreign, a}, merge(reconnect.BatchError{nil, foreign, nil}, a), "of all the rest")
}

func TestSuspicious(t *testing.T) {
	for _, tt := range []struct{ limit, held, want int64 }{
		{10_000, 100, 9_900}, {10_000, 0, 10_000}, {10_000, 9_000, 5_000}, {10, 100, 5}, {1, 100, 1}, {3, 1, 2},
	} {
		require.Equal(t, tt.want, suspicious(tt.limit, tt.held), "limit %d, %d held", tt.limit, tt.held)
	}
}

// Each look at a full queue is reported, and the first one after it; calls do not overlap, and none is forgotten.
func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		o := overflow{call: func() { calls++; time.Sleep(time.Minute) }, log: testenv.Logger(io.Discard)}
		look := func(ready int64) time.Duration {
			next := o.look(ready, 100, 1)
			time.Sleep(time.Hour)
			synctest.Wait()
			return next
		}
		require.Equal(t, calm, look(0))
		require.Equal(t, calm, look(24))
		require.Equal(t, tense, look(25))
		require.Equal(t, tense, look(98))
		require.Zero(t, calls)
		require.Equal(t, tense, look(99))
		require.Equal(t, 1, calls)
		look(100)
		require.Equal(t, 2, calls)
		require.Equal(t, calm, look(0))
		require.Equal(t, 3, calls, "it may have been full until just now")
		look(0)
		require.Equal(t, 3, calls)

		for range 5 { // while a call is in progress: one more, after it
			o.look(100, 100, 1)
		}
		o.wait(t.Context())
		require.Equal(t, 5, calls)
		look(0)
		require.Equal(t, 5, calls, "of the next Run nothing is suspected")
	})
}
