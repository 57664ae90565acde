package consistenthash_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

// The hash decides where messages are that already wait, so it must never change.
func TestHashStaysAsItIs(t *testing.T) {
	for _, tt := range []struct {
		key   string
		count int
		want  int
	}{
		{"", 1, 0},
		{"", 8, 1},
		{"a", 8, 2},
		{"b-17", 8, 2},
		{"b-17", 9, 2},
		{"b-17", 16, 2},
		{"b-18", 8, 7},
		{"customer-00000042", 3, 1},
		{"order/1/line/1", 100, 33},
		{"höhe", 1000, 774},
		{"\x00\xff", 1000, 421},
		{"key-0", 4, 1},
		{"key-1", 4, 1},
		{"key-2", 4, 3},
		{"key-3", 4, 0},
	} {
		require.Equal(t, tt.want, consistenthash.Partitions{Count: tt.count}.Of(tt.key), "%q of %d", tt.key, tt.count)
	}
	require.Equal(t, -1, consistenthash.Partitions{Count: 8, Plugin: true}.Of("b-17"), "only the broker knows")
}

// P34: keys like those of real programs, alike but for a number, are spread evenly.
func TestHashSpreadsKeys(t *testing.T) {
	for _, format := range []string{"%d", "b-%d", "customer-%08d", "%d@example.com", "order/%d/line/1", "3f2504e0-4f89-11d3-9a0c-%012d"} {
		for _, count := range []int{2, 3, 4, 8, 9, 16, 100} {
			perPartition := make([]int, count)
			keys := 1000 * count
			for i := range keys {
				perPartition[consistenthash.Partitions{Count: count}.Of(fmt.Sprintf(format, i))]++
			}
			for partition, n := range perPartition {
				require.InDelta(t, 1000, n, 150, "%q: partition %d of %d", format, partition, count) // 4.7 sigma
			}
		}
	}
}

// One more partition takes its share from all others and moves nothing between them.
func TestHashMovesFewKeys(t *testing.T) {
	moved := 0
	for i := range 10_000 {
		key := fmt.Sprintf("key-%d", i)
		before, after := consistenthash.Partitions{Count: 8}.Of(key), consistenthash.Partitions{Count: 9}.Of(key)
		if before != after {
			require.Equal(t, 8, after)
			moved++
		}
	}
	require.InDelta(t, 10_000/9, moved, 150)
}

func FuzzOf(f *testing.F) {
	f.Add("b-17", 8)
	f.Fuzz(func(t *testing.T, key string, count int) {
		if count < 1 || count > 1000 {
			return
		}
		p := consistenthash.Partitions{Count: count}
		at := p.Of(key)
		require.GreaterOrEqual(t, at, 0)
		require.Less(t, at, count)
		require.Equal(t, at, p.Of(key))
	})
}

func TestTopology(t *testing.T) {
	p := consistenthash.Partitions{Name: "bookings", Count: 3, DeliveryLimit: 7, DeadLetterExchange: "dead"}
	partition := func(i string) reconnect.Queue {
		return reconnect.Queue{Name: "bookings." + i, Arguments: amqp.Table{
			"x-single-active-consumer": true, "x-delivery-limit": int64(7), "x-dead-letter-exchange": "dead",
			"x-dead-letter-routing-key": "bookings.dlq", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}}
	}
	want := reconnect.Topology{
		Exchanges: []reconnect.Exchange{{Name: "bookings", Kind: "direct"}, {Name: "dead", Kind: "direct"}},
		Queues: []reconnect.Queue{
			{Name: "bookings.partitions", Type: "classic", Arguments: amqp.Table{"x-max-length": int64(3)}},
			{Name: "bookings.dlq", Arguments: amqp.Table{"x-delivery-limit": int64(1_000_000)}},
			partition("000"), partition("001"), partition("002"),
		},
		Bindings: []reconnect.Binding{
			{Exchange: "dead", Key: "bookings.dlq", Queue: "bookings.dlq"},
			{Exchange: "bookings", Key: "bookings.000", Queue: "bookings.000"},
			{Exchange: "bookings", Key: "bookings.001", Queue: "bookings.001"},
			{Exchange: "bookings", Key: "bookings.002", Queue: "bookings.002"},
		},
	}
	require.Equal(t, want, p.Topology())

	p.Plugin, p.HashHeader = true, "customer"
	plugin := p.Topology()
	require.Equal(t, reconnect.Exchange{Name: "bookings", Kind: "x-consistent-hash", Arguments: amqp.Table{"hash-header": "customer"}}, plugin.Exchanges[0])
	for i, b := range plugin.Bindings[1:] {
		require.Equal(t, reconnect.Binding{Exchange: "bookings", Key: "1", Queue: p.Queue(i)}, b, "equal weights, in order")
	}
}

func TestFaultsAreNamed(t *testing.T) {
	conn, err := reconnect.Dial(context.Background(), "amqp://localhost", reconnect.Config{Lazy: true})
	require.NoError(t, err)
	defer conn.Close(context.Background())
	handler := func(context.Context, amqp.Delivery) error { return nil }
	type parts = consistenthash.Partitions
	type config = consistenthash.ConsumerConfig
	for _, tt := range []struct {
		p    parts
		cfg  config
		want []string
	}{
		{parts{}, config{}, []string{"Name", "Count: 0"}},
		{parts{Name: strings.Repeat("n", 201), Count: 1001, DeliveryLimit: -1, Declare: 3}, config{}, []string{"Name: 201", "Count: 1001", "DeliveryLimit: -1", "Declare: 3"}},
		{parts{Name: "p", Count: 1, HashHeader: "h", HashProperty: "type"}, config{}, []string{"HashHeader: only with Plugin"}},
		{parts{Name: "p", Count: 1, HashProperty: "message_id"}, config{}, []string{"HashProperty: only with Plugin"}},
		{parts{Name: "p", Count: 1, Plugin: true, HashHeader: "h", HashProperty: "type"}, config{}, []string{"HashHeader: set beside HashProperty"}},
		{parts{Name: "p", Count: 1, Plugin: true, HashProperty: "type"}, config{}, []string{`HashProperty: "type"`}},
		{parts{Name: "p", Count: 1, DeadLetterExchange: "p"}, config{}, []string{"DeadLetterExchange"}},
		{parts{Name: "p", Count: 1}, config{Prefetch: -1}, []string{"Prefetch: -1"}},
		{parts{Name: "p", Count: 1}, config{MaxAttempts: -1, InitialDelay: -2, MaxDelay: -3}, []string{"MaxAttempts: -1", "InitialDelay: -2", "MaxDelay: -3"}},
		{parts{Name: "p", Count: 1}, config{HandlerTimeout: 7 * time.Minute}, []string{"HandlerTimeout: 7m0s for each of 5 attempts"}},
		{parts{Name: "p", Count: 1}, config{MaxAttempts: 1 << 60}, []string{"for each of 1152921504606846976 attempts"}},
		{parts{Name: "p", Count: 1}, config{MaxAttempts: 300}, []string{"MaxAttempts: 300, with pauses"}},
		{parts{Name: "p", Count: 1}, config{HandlerTimeout: -1, MaxAttempts: 300}, []string{"MaxAttempts: 300, with pauses"}},
		{parts{Name: "p", Count: 1}, config{ShutdownTimeout: -2}, []string{"ShutdownTimeout"}},
	} {
		_, err := consistenthash.NewConsumer(conn, tt.p, handler, tt.cfg)
		for _, want := range tt.want {
			require.ErrorContains(t, err, want)
		}
		if tt.cfg == (config{}) {
			_, err = consistenthash.NewPublisher(conn, tt.p, reconnect.PublisherConfig{Window: -1})
			require.ErrorContains(t, err, "Window")
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
			_, err = consistenthash.Resize(t.Context(), conn, tt.p, 0)
			for _, want := range append(tt.want, "count: 0") {
				require.ErrorContains(t, err, want)
			}
		}
	}
	_, err = consistenthash.NewConsumer(conn, parts{Name: "p", Count: 1}, nil, config{})
	require.ErrorContains(t, err, "handler: nil")
	_, err = consistenthash.NewConsumer(nil, parts{Name: "p", Count: 1}, handler, config{})
	require.ErrorContains(t, err, "conn: nil")
	_, err = consistenthash.NewPublisher(nil, parts{Name: "p", Count: 1}, reconnect.PublisherConfig{})
	require.ErrorContains(t, err, "conn: nil")
	_, err = consistenthash.Resize(t.Context(), nil, parts{Name: "p", Count: 1}, 2)
	require.ErrorContains(t, err, "conn: nil")
	_, err = consistenthash.Resize(t.Context(), conn, parts{Name: "p", Count: 1, Declare: reconnect.Passive}, 2)
	require.ErrorContains(t, err, "Declare")

	_, err = consistenthash.NewConsumer(conn, parts{Name: "p", Count: 1000}, handler, config{InitialDelay: -1, MaxAttempts: 300, Prefetch: 3})
	require.NoError(t, err)
}
