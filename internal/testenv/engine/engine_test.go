package engine

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers as a Docker engine does, on a socket of its own, and returns where.
func serve(t *testing.T, routes map[string]http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	mux := http.NewServeMux()
	for pattern, h := range routes {
		mux.HandleFunc(pattern, h)
	}
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return "unix://" + path
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func TestEnsure(t *testing.T) {
	const inspect, create = "GET /images/some/image:4/json", "POST /images/create"
	for _, tt := range []struct {
		name   string
		routes map[string]http.HandlerFunc
		pulls  int
		want   string // part of the error's text; "" for none
	}{
		{"there", map[string]http.HandlerFunc{inspect: answer(200, `{}`)}, 0, ""},
		{"pulled", map[string]http.HandlerFunc{
			inspect: answer(404, `{}`), create: answer(200, "{\"status\":\"Pulling\"}\r\n{\"status\":\"Done\"}\r\n")}, 1, ""},
		{"refused", map[string]http.HandlerFunc{
			inspect: answer(404, `{}`), create: answer(500, `{"message":"no such host"}`)}, 1, "no such host"},
		{"fails half-way", map[string]http.HandlerFunc{
			inspect: answer(404, `{}`), create: answer(200, `{"status":"Pulling"}{"error":"connection lost"}`)}, 1, "connection lost"},
		{"report cut off", map[string]http.HandlerFunc{
			inspect: answer(404, `{}`), create: answer(200, `{"status":"Pu`)}, 1, "unexpected EOF"},
		{"engine in trouble", map[string]http.HandlerFunc{inspect: answer(500, `oh`)}, 0, "status 500: oh"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.routes["GET /_ping"] = answer(200, "OK")
			e, err := first(context.Background(), []string{"unix:///nobody/listens", serve(t, tt.routes)})
			require.NoError(t, err)
			pulls := 0
			err = e.Ensure(context.Background(), "some/image:4", func(string) { pulls++ })
			require.Equal(t, tt.pulls, pulls)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestFindNone(t *testing.T) {
	for name, host := range map[string]string{
		"nothing listens": "unix://" + filepath.Join(t.TempDir(), "none.sock"),
		"not a socket":    "ssh://somewhere",
		"no address":      "%",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := first(context.Background(), []string{host})
			require.ErrorIs(t, err, ErrNone)
		})
	}
	t.Run("something else listens", func(t *testing.T) {
		_, err := first(context.Background(), []string{serve(t, map[string]http.HandlerFunc{"GET /_ping": answer(503, "busy")})})
		require.ErrorIs(t, err, ErrNone)
		require.ErrorContains(t, err, "status 503: busy")
	})
	t.Run("TLS", func(t *testing.T) {
		t.Setenv("DOCKER_TLS_VERIFY", "1")
		_, err := first(context.Background(), []string{"tcp://127.0.0.1:1"})
		require.ErrorContains(t, err, "TLS is not supported")
	})
	t.Run("nowhere to look", func(t *testing.T) {
		_, err := first(context.Background(), nil)
		require.ErrorIs(t, err, ErrNone)
	})
}

func TestCandidates(t *testing.T) {
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
	require.Equal(t, "tcp://127.0.0.1:2375", candidates()[0])
}

func TestTagged(t *testing.T) {
	for image, want := range map[string]bool{
		"rabbitmq": false, "rabbitmq:4": true, "host:5000/rabbitmq": false, "host:5000/rabbitmq:4": true, "rabbitmq@sha256:0": true,
	} {
		require.Equal(t, want, tagged(image), image)
	}
}
