package retry_test

import (
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
)

const ms = time.Millisecond

// The table in Policy's comment, line by line.
func TestDelays(t *testing.T) {
	for name, tt := range map[string]struct {
		policy retry.Policy
		want   []time.Duration
	}{
		"zero":                 {retry.Policy{}, []time.Duration{time.Second, 5 * time.Second, 25 * time.Second, 125 * time.Second, 10 * time.Minute}},
		"three attempts":       {retry.Policy{MaxAttempts: 3}, []time.Duration{time.Second, 5 * time.Second}},
		"doubling":             {retry.Policy{InitialDelay: 100 * ms, Multiplier: 2, MaxDelay: time.Second}, []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second}},
		"constant":             {retry.Policy{Multiplier: 1, InitialDelay: time.Minute}, []time.Duration{time.Minute}},
		"no limit":             {retry.Policy{MaxAttempts: -1}, []time.Duration{time.Second, 5 * time.Second, 25 * time.Second, 125 * time.Second, 10 * time.Minute}},
		"never again":          {retry.Policy{MaxAttempts: 1}, nil},
		"long":                 {retry.Policy{MaxAttempts: -1, InitialDelay: time.Hour}, []time.Duration{time.Hour}},
		"whole milliseconds":   {retry.Policy{MaxAttempts: 4, InitialDelay: 3 * ms, Multiplier: 1.5}, []time.Duration{3 * ms, 5 * ms, 8 * ms}},
		"too little to matter": {retry.Policy{InitialDelay: ms, Multiplier: 1.01}, []time.Duration{ms}},
		"49 days":              {retry.Policy{MaxAttempts: -1, InitialDelay: 1000 * time.Hour, MaxDelay: math.MaxUint32 * ms, Multiplier: 1e300}, []time.Duration{1000 * time.Hour, math.MaxUint32 * ms}},
		"refused":              {retry.Policy{InitialDelay: -1}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, tt.policy.Delays()) })
	}
}

func TestNewReturnsAllFaults(t *testing.T) {
	conn, err := reconnect.Dial(t.Context(), "amqp://127.0.0.1:1/", reconnect.Config{Lazy: true, Logger: quiet})
	require.NoError(t, err)
	defer conn.Close(t.Context())
	refused := func(queue string, p retry.Policy, texts ...string) {
		t.Helper()
		_, err := retry.New(t.Context(), conn, queue, p)
		require.Error(t, err)
		for _, text := range texts {
			require.ErrorContains(t, err, text)
		}
		require.Empty(t, p.Delays())
	}
	refused("", retry.Policy{MaxAttempts: -2, InitialDelay: -1, MaxDelay: 1500 * time.Microsecond, Multiplier: 0.5, Jitter: 2, MaxAge: -1, Declare: 7},
		"queue: empty", "MaxAttempts: -2", "InitialDelay: -1ns", "MaxDelay: 1.5ms", "Multiplier: 0.5", "Jitter: 2", "MaxAge: -1ns", "Declare: 7")
	refused("q", retry.Policy{MaxDelay: time.Millisecond, InitialDelay: time.Second}, "MaxDelay: 1ms is shorter than InitialDelay")
	refused("q", retry.Policy{InitialDelay: 50 * 24 * time.Hour}, "InitialDelay")
	refused("q", retry.Policy{MaxAttempts: -1, Multiplier: 1.01}, "Multiplier: 1.01 makes more than 64")
	refused("q", retry.Policy{Multiplier: math.NaN()}, "Multiplier: NaN")
	refused("q", retry.Policy{Multiplier: math.Inf(1)}, "Multiplier: +Inf")
	refused("q", retry.Policy{Jitter: math.NaN()}, "Jitter: NaN")
	_, err = retry.New(t.Context(), nil, "q", retry.Policy{})
	require.EqualError(t, err, "retry: conn: nil")
	_, err = retry.New(t.Context(), conn, string(make([]byte, 300)), retry.Policy{DeadLetterExchange: "amq.x"})
	require.ErrorContains(t, err, "queue: 300 bytes")
	require.ErrorContains(t, err, "DeadLetterExchange: ")
}

func TestTopology(t *testing.T) {
	delay := func(queue, dlx string, ms int64) amqp.Table {
		return amqp.Table{"x-message-ttl": ms, "x-dead-letter-exchange": dlx, "x-dead-letter-routing-key": queue,
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": int64(1_000_000)}
	}
	dlq := amqp.Table{"x-delivery-limit": int64(1_000_000)}
	for name, tt := range map[string]struct {
		policy retry.Policy
		want   reconnect.Topology
	}{
		"queues": {retry.Policy{MaxAttempts: 3}, reconnect.Topology{Queues: []reconnect.Queue{
			{Name: "q.dlq", Arguments: dlq},
			{Name: "q.retry.1000", Arguments: delay("q", "", 1000)},
			{Name: "q.retry.5000", Arguments: delay("q", "", 5000)},
		}}},
		"30 days are not cut to 32 bits": {retry.Policy{MaxAttempts: 2, InitialDelay: 720 * time.Hour}, reconnect.Topology{Queues: []reconnect.Queue{
			{Name: "q.dlq", Arguments: dlq},
			{Name: "q.retry.2592000000", Arguments: delay("q", "", 2_592_000_000)},
		}}},
		"jitter": {retry.Policy{MaxAttempts: 2, Jitter: 0.3}, reconnect.Topology{Queues: []reconnect.Queue{
			{Name: "q.dlq", Arguments: dlq},
			{Name: "q.retry.1000", Arguments: delay("q", "", 1000)},
			{Name: "q.retry.1100", Arguments: delay("q", "", 1100)},
			{Name: "q.retry.1200", Arguments: delay("q", "", 1200)},
			{Name: "q.retry.1300", Arguments: delay("q", "", 1300)},
		}}},
		"own dead-letter exchange": {retry.Policy{MaxAttempts: 2, DeadLetterExchange: "dlx"}, reconnect.Topology{
			Exchanges: []reconnect.Exchange{{Name: "dlx", Kind: "direct"}},
			Queues: []reconnect.Queue{
				{Name: "q.dlq", Arguments: dlq},
				{Name: "q.retry.1000", Arguments: delay("q", "dlx", 1000)},
			},
			Bindings: []reconnect.Binding{{Exchange: "dlx", Key: "q.dlq", Queue: "q.dlq"},
				{Exchange: "dlx", Key: "q.retry.1000", Queue: "q.retry.1000"}, {Exchange: "dlx", Key: "q", Queue: "q"}},
		}},
		"somebody else's": {retry.Policy{MaxAttempts: 1, DeadLetterExchange: "dlx", Declare: reconnect.Passive}, reconnect.Topology{
			Exchanges: []reconnect.Exchange{{Name: "dlx", Kind: "direct", Declare: reconnect.Passive}},
			Queues:    []reconnect.Queue{{Name: "q.dlq", Arguments: dlq, Declare: reconnect.Passive}},
			Bindings:  []reconnect.Binding{{Exchange: "dlx", Key: "q.dlq", Queue: "q.dlq"}},
		}},
		"plugin": {retry.Policy{DelayedPlugin: true}, reconnect.Topology{
			Exchanges: []reconnect.Exchange{{Name: "q.delayed", Kind: "x-delayed-message", Arguments: amqp.Table{"x-delayed-type": "direct"}}},
			Queues:    []reconnect.Queue{{Name: "q.dlq", Arguments: dlq}},
			Bindings:  []reconnect.Binding{{Exchange: "q.delayed", Key: "q", Queue: "q"}},
		}},
		"refused": {retry.Policy{Jitter: 2}, reconnect.Topology{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, tt.policy.Topology("q")) })
	}
}
