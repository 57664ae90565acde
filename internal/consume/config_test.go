package consume

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func validConfig() Config {
	return Config{
		Name: "n", Queue: "q", Handler: func(context.Context, amqp.Delivery) error { return nil },
		Supervise: func(context.Context, string, func(context.Context, *amqp.Channel) error) error { return nil },
	}
}

func TestDefaults(t *testing.T) {
	l, err := New(validConfig())
	require.NoError(t, err)
	c := l.Config()
	require.Equal(t, 1, c.Concurrency)
	require.Equal(t, 1, c.Prefetch)
	require.Equal(t, 25*time.Minute, c.HandlerTimeout)
	require.Equal(t, 30*time.Minute, c.ConsumerTimeout)
	require.Equal(t, 30*time.Second, c.ShutdownTimeout)
	require.Equal(t, 5*time.Second, c.AbandonAfter)
	require.NotNil(t, c.Logger)

	batch := validConfig()
	batch.Handler, batch.Batch = nil, func(context.Context, []amqp.Delivery) error { return nil }
	l, err = New(batch)
	require.NoError(t, err)
	c = l.Config()
	require.Equal(t, 100, c.BatchSize)
	require.Equal(t, 50*time.Millisecond, c.BatchWait)
	require.Equal(t, 200, c.Prefetch)
	require.Equal(t, 25*time.Minute/2, c.HandlerTimeout, "two batches in the prefetch")
}

func TestHandlerTimeoutDefault(t *testing.T) {
	for _, tc := range []struct {
		prefetch       int
		consumer, want time.Duration
	}{
		{1, 0, 25 * time.Minute},
		{100, 0, 15 * time.Second},
		{10, time.Minute, 5 * time.Second},
		{1, -1, -1},
		{65535, time.Microsecond, 1},
	} {
		c := validConfig()
		c.Prefetch, c.ConsumerTimeout = tc.prefetch, tc.consumer
		l, err := New(c)
		if tc.want == 1 {
			require.ErrorContains(t, err, "HandlerTimeout: ")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tc.want, l.Config().HandlerTimeout)
	}
}

func TestFaultsAreNamed(t *testing.T) {
	batch := func(context.Context, []amqp.Delivery) error { return nil }
	for _, tc := range []struct {
		field string
		spoil func(*Config)
	}{
		{"Name", func(c *Config) { c.Name = "" }},
		{"Queue", func(c *Config) { c.Queue = "" }},
		{"Supervise", func(c *Config) { c.Supervise = nil }},
		{"Handler", func(c *Config) { c.Handler = nil }},
		{"Handler", func(c *Config) { c.Batch = batch }},
		{"BatchSize", func(c *Config) { c.Handler, c.Batch, c.BatchSize = nil, batch, -1 }},
		{"BatchSize", func(c *Config) { c.Handler, c.Batch, c.Prefetch = nil, batch, 10 }},
		{"BatchWait", func(c *Config) { c.Handler, c.Batch, c.BatchWait = nil, batch, -1 }},
		{"Concurrency", func(c *Config) { c.Concurrency = -1 }},
		{"Prefetch", func(c *Config) { c.Prefetch = -1 }},
		{"Prefetch", func(c *Config) { c.Prefetch = 65536 }},
		{"HandlerTimeout", func(c *Config) { c.HandlerTimeout = -2 }},
		{"HandlerTimeout", func(c *Config) { c.HandlerTimeout, c.Prefetch = 4*time.Minute, 10 }},
		{"HandlerTimeout", func(c *Config) { c.HandlerTimeout, c.ConsumerTimeout = 2*time.Second, time.Second }},
		{"ShutdownTimeout", func(c *Config) { c.ShutdownTimeout = -2 }},
		{"AbandonAfter", func(c *Config) { c.AbandonAfter = -time.Second }},
		{"ConsumerTimeout", func(c *Config) { c.ConsumerTimeout = -5 }},
		{"PerSecond", func(c *Config) { c.PerSecond = -1 }},
		{"PerSecond", func(c *Config) { c.PerSecond = math.NaN() }},
		{"PerSecond", func(c *Config) { c.PerSecond = math.Inf(1) }},
	} {
		c := validConfig()
		tc.spoil(&c)
		_, err := New(c)
		require.Error(t, err, tc.field)
		for line := range strings.Lines(err.Error()) {
			require.True(t, strings.HasPrefix(line, tc.field+": "), "%q", line)
		}
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := New(Config{Prefetch: 70000})
	require.EqualError(t, err, "Name: missing\nQueue: missing\nSupervise: missing\nHandler: missing\nPrefetch: 70000, must be between 1 and 65535, or 0 for the default")
}

func TestTimeoutsUpToTheBound(t *testing.T) {
	c := validConfig()
	c.HandlerTimeout, c.Prefetch = 3*time.Minute, 10
	_, err := New(c)
	require.NoError(t, err, "exactly ConsumerTimeout")
	c.HandlerTimeout, c.Prefetch = -1, 1000
	_, err = New(c)
	require.NoError(t, err, "no limit")
	c = validConfig()
	c.HandlerTimeout, c.ConsumerTimeout = time.Hour, -1
	_, err = New(c)
	require.NoError(t, err)
}
