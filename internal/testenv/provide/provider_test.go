package provide

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeServer counts its removals.
type fakeServer struct{ removed int }

func (f *fakeServer) Remove() error { f.removed++; return nil }

func TestStartTriesOtherPorts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails []string // the errors of the first attempts
		tries int
		ok    bool
	}{
		{name: "at once", tries: 1, ok: true},
		{name: "port taken", fails: []string{"boom eaddrinuse boom"}, tries: 2, ok: true},
		{name: "port of the distribution taken", fails: []string{`{dist_port_already_used,37669,not_erlang,"localhost"}`}, tries: 2, ok: true},
		{name: "port taken before PostgreSQL", fails: []string{"could not bind IPv4 address: Address already in use"}, tries: 2, ok: true},
		{name: "port taken on the engine", fails: []string{"Bind for 127.0.0.1:1 failed: port is already allocated"}, tries: 2, ok: true},
		{name: "always taken", fails: []string{"eaddrinuse", "eaddrinuse", "eaddrinuse"}, tries: 3},
		{name: "another reason", fails: []string{"no disk"}, tries: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := new(Provider)
			server := new(fakeServer)
			tries := 0
			_, err := start(p, func() (*fakeServer, error) {
				tries++
				if tries <= len(tt.fails) {
					return nil, errors.New(tt.fails[tries-1])
				}
				return server, nil
			})
			require.Equal(t, tt.tries, tries)
			require.Equal(t, tt.ok, err == nil)
			require.NoError(t, p.Close())
			require.NoError(t, p.Close())
			if tt.ok {
				require.Equal(t, 1, server.removed)
			}
		})
	}
}
