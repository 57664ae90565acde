package testenv

import (
	"context"
	"sync"
	"testing"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// FaultPostgres is a PostgreSQL server of which the test may break the whole. Its methods fail the test that it is lent to,
// and are called from that test's goroutine.
type FaultPostgres struct {
	server *provide.Postgres
	url    string
	tb     testing.TB
	frozen bool
}

// lendingPostgres says who has the server.
var lendingPostgres struct {
	inUse  sync.Mutex // held as long as a test has the server
	mu     sync.Mutex
	holder *FaultPostgres
}

// PostgresNode lends the test the PostgreSQL server that this binary's tests share for faults that hit the whole of one, with
// an empty database on it, and starts it at first use. No other test has it until this one has ended, and it runs again
// then. Asking twice gives the same server and database.
func PostgresNode(tb testing.TB) *FaultPostgres {
	tb.Helper()
	lendingPostgres.mu.Lock()
	held := lendingPostgres.holder
	lendingPostgres.mu.Unlock()
	if held != nil && held.tb == tb {
		return held
	}
	lendingPostgres.inUse.Lock()
	tb.Cleanup(lendingPostgres.inUse.Unlock)
	server, err := postgresNodeServer(tb)
	if err != nil {
		tb.Fatalf("no PostgreSQL server for the test: %v\n%s", err, hint)
	}
	n := &FaultPostgres{server: server, url: database(tb, server), tb: tb}
	setPostgresHolder(n)
	tb.Cleanup(func() { // before the database is dropped
		setPostgresHolder(nil)
		n.heal()
	})
	return n
}

// NodeAndPostgres is Node and PostgresNode for a test that breaks both: they boot at the same time.
func NodeAndPostgres(tb testing.TB) (*FaultNode, *FaultPostgres) {
	tb.Helper()
	var booting sync.WaitGroup
	defer booting.Wait()
	booting.Go(func() {
		if shared, err := postgresServer(); err != nil || shared.Kind == provide.URL {
			return // as PostgresNode is about to say
		}
		if p, err := provider(); err == nil {
			_, _ = owned.database.get(p.PostgresNode)
		}
	})
	return Node(tb), PostgresNode(tb)
}

// postgresNodeServer starts the server when there is none yet.
func postgresNodeServer(tb testing.TB) (*provide.Postgres, error) {
	tb.Helper()
	shared, err := postgresServer()
	if err != nil {
		return nil, err
	}
	if shared.Kind == provide.URL {
		leaveOut(tb, "a database server of its own, to break it")
	}
	p, err := provider()
	if err != nil {
		return nil, err
	}
	return owned.database.get(p.PostgresNode)
}

func setPostgresHolder(n *FaultPostgres) {
	lendingPostgres.mu.Lock()
	lendingPostgres.holder = n
	lendingPostgres.mu.Unlock()
}

// heal undoes what the test did to the server.
func (n *FaultPostgres) heal() {
	if n.frozen {
		n.Thaw()
	}
	if !n.server.Running() {
		n.Start()
	}
}

// URL returns the address of the test's database on the server. It stays the same over restarts.
func (n *FaultPostgres) URL() string { return n.url }

// Stop ends the server in good order (a fast shutdown): sessions get 57P01 and are rolled back, then dials are refused.
func (n *FaultPostgres) Stop() {
	n.tb.Helper()
	n.do("stop", n.server.Stop)
}

// Start boots a server that was stopped or crashed, under the same address and with its data, and returns once it serves.
func (n *FaultPostgres) Start() {
	n.tb.Helper()
	n.do("start", n.server.Start)
}

// Restart is Crash and Start.
func (n *FaultPostgres) Restart() {
	n.tb.Helper()
	n.Crash()
	n.Start()
}

// Crash ends the server at once (an immediate shutdown): connections end without a word, the next Start recovers from the
// WAL. What was committed is there then.
func (n *FaultPostgres) Crash() {
	n.tb.Helper()
	n.frozen = false
	n.do("crash", func(context.Context) error { return n.server.Crash() })
}

// Freeze stops the server and all its sessions where they are: sockets stay open, nothing answers.
func (n *FaultPostgres) Freeze() {
	n.tb.Helper()
	n.do("freeze", func(context.Context) error { return n.server.Freeze() })
	n.frozen = true
}

// Thaw ends Freeze.
func (n *FaultPostgres) Thaw() {
	n.tb.Helper()
	n.do("thaw", func(context.Context) error { return n.server.Thaw() })
	n.frozen = false
}

func (n *FaultPostgres) do(what string, action func(context.Context) error) {
	n.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if err := action(ctx); err != nil {
		n.tb.Fatalf("%s the database server: %v", what, err)
	}
}
