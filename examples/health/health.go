package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/warrenmq/warren/reconnect"
)

// handler answers for conn and for the workers on it.
func handler(conn *reconnect.Conn, ready ...<-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { readiness(w, r, conn, ready) })
	mux.HandleFunc("GET /statez", func(w http.ResponseWriter, _ *http.Request) { states(w, conn) })
	return mux
}

// live says that the process serves. It does not look at the broker: links come back by themselves, and a restart of the
// service because of them would only interrupt what is in hand.
func live(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") }

// readiness says whether the broker answers on each link in use and every worker has begun, or what does not.
func readiness(w http.ResponseWriter, r *http.Request, conn *reconnect.Conn, ready []<-chan struct{}) {
	for i, begun := range ready {
		select {
		case <-begun:
		default:
			http.Error(w, fmt.Sprintf("worker %d has not begun", i), http.StatusServiceUnavailable)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second) // shorter than whoever asks waits
	defer cancel()
	if err := conn.Ping(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// states shows each link and each worker as it is. Reasons may name hosts and queues: this is for operators.
func states(w http.ResponseWriter, conn *reconnect.Conn) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(conn.State()) // who asked has gone
}
