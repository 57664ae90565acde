package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

func TestPlan(t *testing.T) {
	noEngine := errors.New("no engine")
	for _, tt := range []struct {
		name    string
		environ map[string]string
		images  error
		want    []provide.Kind
		left    []string
	}{
		{"everything", nil, nil, []provide.Kind{provide.Local, provide.Container}, nil},
		{"no containers", nil, noEngine, []provide.Kind{provide.Local}, []string{"RabbitMQ 4 in a container: no engine"}},
		{"both addresses", map[string]string{"AMQP_URL": "x", "DATABASE_URL": "y"}, nil, []provide.Kind{provide.URL}, nil},
		{"a broker's address", map[string]string{"AMQP_URL": "x"}, nil, []provide.Kind{""}, nil},
		{"a database's address", map[string]string{"DATABASE_URL": "y"}, nil, []provide.Kind{provide.Local, provide.Container}, nil},
		{"local asked for", map[string]string{"WARREN_BROKER": "local", "AMQP_URL": "x"}, nil, []provide.Kind{provide.Local},
			[]string{"RabbitMQ 4 in a container: WARREN_BROKER=local"}},
		{"container asked for", map[string]string{"WARREN_BROKER": "container"}, noEngine, []provide.Kind{provide.Container},
			[]string{"the machine's own RabbitMQ: WARREN_BROKER=container"}},
		{"url asked for", map[string]string{"WARREN_BROKER": "url"}, nil, []provide.Kind{provide.URL}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			getenv := func(name string) string { return tt.environ[name] }
			passes, left := plan(getenv, false, func() error { return tt.images })
			require.Equal(t, tt.want, passes)
			require.Equal(t, tt.left, left)

			passes, left = plan(getenv, true, func() error { t.Fatal("asked for images"); return nil })
			require.Equal(t, tt.want[:1], passes)
			require.Empty(t, left)
		})
	}
}

func TestCommand(t *testing.T) {
	command := jobs["test"].command([]string{"-run", "TestA1", "./reconnect"})
	require.Equal(t, []string{"-run", "TestA1", "./reconnect"}, command[len(command)-3:])
	for _, flag := range []string{"-race", "-shuffle=on", "-json", "-count=1"} {
		require.Contains(t, command, flag)
	}
	command = jobs["chaos"].command([]string{"-run", "TestA1"})
	require.Equal(t, "./...", command[len(command)-1])
	require.Less(t, slices.Index(command, "-run=Chaos"), slices.Index(command, "-run"))
	command = jobs["bench"].command(nil)
	require.NotContains(t, command, "-race")
	require.NotContains(t, command, "-json")
}

func TestRequireAll(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		want        bool
	}{{"CI", "true", true}, {"CI", "false", false}, {"WARREN_REQUIRE_ALL", "1", true}, {"WARREN_REQUIRE_ALL", "0", false}} {
		require.Equal(t, tt.want, requireAll(func(name string) string {
			if name == tt.name {
				return tt.value
			}
			return ""
		}))
	}
}
