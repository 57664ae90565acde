package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is for a machine that does much else.
const patience = 30 * time.Second

// The service lives all the time, is ready while the broker is there, and says why when it is not.
func TestHealthOfAService(t *testing.T) {
	testenv.NoLeaks(t)
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	proxy.Refuse() // no broker yet
	queue := workqueue.Queue{Name: testenv.Name(t, "ticks")}
	broker.Tidy(t, queue.Name)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, proxy.URL(), queue, socket) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	get := func(path string) (int, string) {
		response, err := client.Get("http://" + socket.Addr().String() + path)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	lives := func() {
		t.Helper()
		code, _ := get("/livez")
		require.Equal(t, http.StatusOK, code)
	}
	unready := func(says string) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool {
			code, body := get("/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(body, says)
		}, "not ready: %s", says)
		lives()
	}
	ready := func() {
		t.Helper()
		testenv.Eventually(t, patience, func() bool { code, _ := get("/readyz"); return code == http.StatusOK }, "ready")
		lives()
	}
	unready("worker 0 has not begun")
	proxy.Heal()
	ready()

	proxy.Refuse()
	proxy.Cut()
	unready("not connected")
	testenv.Eventually(t, patience, func() bool { // each link notices for itself
		_, body := get("/statez")
		require.NotContains(t, body, "guest")
		var states []reconnect.State
		require.NoError(t, json.Unmarshal([]byte(body), &states))
		return states[0].Phase == "connecting" && states[0].Reason != ""
	}, "the first link says why it is not connected")
	proxy.Heal()
	ready()

	proxy.Freeze() // connections that seem to be there
	unready("context deadline exceeded")
	proxy.Heal()
	ready()
	stop()
	require.NoError(t, <-done)
}
