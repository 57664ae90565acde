package reconnect

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigNamesEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	cfg := Config{
		Name: strings.Repeat("n", 201) + "\xff", Hosts: []string{"", "ok", "host:", ":5672", "[::1]:1"}, Heartbeat: time.Millisecond,
		DialTimeout: -1, BackoffMin: -1, BackoffMax: -2, ConsumerTimeout: -1, AbandonAfter: -1, MaxBody: -2, Declare: Skip + 1,
		TLS: &tls.Config{}, TLSFunc: func(context.Context) (*tls.Config, error) { return nil, nil },
	}
	_, err := Dial(t.Context(), "amqps://127.0.0.1:1/", cfg)
	require.Error(t, err)
	require.True(t, strings.HasPrefix(err.Error(), "reconnect: config: "), err)
	lines := strings.Split(strings.TrimPrefix(err.Error(), "reconnect: config: "), "\n")
	var fields []string
	for _, line := range lines {
		field, _, _ := strings.Cut(line, ":")
		fields = append(fields, field)
	}
	require.Equal(t, []string{"Name", "Name", "Heartbeat", "DialTimeout", "BackoffMin", "BackoffMax", "ConsumerTimeout", "AbandonAfter",
		"BackoffMax", "MaxBody", "Declare", "TLSFunc", "Hosts", "Hosts", "Hosts"}, fields)
}

func TestConfigBounds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  Config
		want string // "" for none
	}{
		"zero":                       {Config{}, ""},
		"smallest heartbeat":         {Config{Heartbeat: time.Second}, ""},
		"largest heartbeat":          {Config{Heartbeat: 65535 * time.Second}, ""},
		"heartbeat too large":        {Config{Heartbeat: 65536 * time.Second}, "Heartbeat: 18h12m16s, must be between 1s and 65535s"},
		"no limit on bodies":         {Config{MaxBody: -1}, ""},
		"long name":                  {Config{Name: strings.Repeat("n", 200)}, ""},
		"min above max":              {Config{BackoffMin: 2 * time.Second, BackoffMax: time.Second}, "BackoffMax: 1s is less than BackoffMin, 2s"},
		"min above the default max":  {Config{BackoffMin: time.Minute}, ""},
		"max below the default min":  {Config{BackoffMax: time.Millisecond}, ""},
		"hosts":                      {Config{Hosts: []string{"a", "a:1", "::1", "[::1]", "[::1]:1"}}, ""},
		"a host with two ports":      {Config{Hosts: []string{"a:b:c"}}, `Hosts: number 0, "a:b:c", is neither host nor host:port`},
		"a port out of range":        {Config{Hosts: []string{"x:99999"}}, `Hosts: number 0, "x:99999", is neither host nor host:port`},
		"port 0":                     {Config{Hosts: []string{"127.0.0.1:0"}}, `Hosts: number 0, "127.0.0.1:0", is neither host nor host:port`},
		"a URL among the hosts":      {Config{Hosts: []string{"amqp://foo/"}}, `Hosts: number 0, "amqp://foo/", is neither host nor host:port`},
		"a host without its port":    {Config{Hosts: []string{"a:"}}, `Hosts: number 0, "a:", is neither host nor host:port`},
		"the strictest declare mode": {Config{Declare: Skip}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.cfg.validate()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tc.want)
		})
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	cfg := Config{}.withDefaults()
	require.Contains(t, cfg.Name, "@")
	require.Equal(t, 10*time.Second, cfg.DialTimeout)
	require.Equal(t, 100*time.Millisecond, cfg.BackoffMin)
	require.Equal(t, 30*time.Second, cfg.BackoffMax)
	require.Equal(t, 16<<20, cfg.MaxBody)
	require.Equal(t, 30*time.Minute, cfg.ConsumerTimeout)
	require.Equal(t, 5*time.Second, cfg.AbandonAfter)
	require.Same(t, slog.Default(), cfg.Logger)

	require.Equal(t, time.Minute, Config{BackoffMin: time.Minute}.withDefaults().BackoffMax)
	require.Equal(t, time.Millisecond, Config{BackoffMax: time.Millisecond}.withDefaults().BackoffMin)
	require.Equal(t, -1, Config{MaxBody: -1}.withDefaults().MaxBody)
}

func TestConfigInForce(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{
		"amqp://127.0.0.1:1/":                 10 * time.Second,
		"amqp://127.0.0.1:1/?heartbeat=7":     7 * time.Second,
		"amqp://127.0.0.1:1/?heartbeat=0":     10 * time.Second, // never off
		"amqp://127.0.0.1:1/?heartbeat=65535": 65535 * time.Second,
	} {
		c, err := Dial(t.Context(), url, Config{Lazy: true})
		require.NoError(t, err)
		require.Equal(t, want, c.Config().Heartbeat, url)
		require.NoError(t, c.Close(t.Context()))
	}
	c, err := Dial(t.Context(), "amqp://127.0.0.1:1/?heartbeat=7", Config{Lazy: true, Heartbeat: 3 * time.Second})
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, c.Config().Heartbeat)
	require.NoError(t, c.Close(t.Context()))
}
