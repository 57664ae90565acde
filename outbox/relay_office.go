package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// office is the lead of a lane: how a relay comes to it, knows that it still has it, and gives it up.
type office interface {
	// take tries once to lead.
	take(ctx context.Context) (won bool, err error)
	// conn is the connection that rows are fetched on while it leads.
	conn() *pgx.Conn
	// probe makes sure, on that connection and so between its statements, that it still leads.
	probe(ctx context.Context) error
	// heard says that a statement on conn that was begun at start has succeeded.
	heard(start time.Time)
	// keep holds the lead until ctx ends, on a way of its own if it needs one, and returns an error when it is lost.
	keep(ctx context.Context) error
	// trusted reports whether nobody else can lead yet. Nothing is sent without it.
	trusted() bool
	// listens reports whether notifications arrive on conn.
	listens() bool
	// resign lets others lead at once.
	resign()
}

const (
	// probeInterval is how often a session is used at least, so that its lock is known to be held.
	probeInterval = 3 * time.Second

	// probeTimeout is how long the answer may take.
	probeTimeout = 5 * time.Second

	// sessionTrust is how long after its last use a session's lock is taken for held.
	sessionTrust = 10 * time.Second

	// idleTimeout is after how much silence the server ends the session, and so gives the lock to others: when the process
	// was stopped, or the host is gone. It is more than sessionTrust, so that nobody else leads while this relay thinks that
	// it does. From PostgreSQL 14 on; before, only a lost host is noticed, by the keepalives.
	idleTimeout = 12 * time.Second
)

// trust is how long, at least, the lead is known to be held. It ends by whichever clock is there first: the monotonic one,
// which goes on while the process is stopped, but not while the machine sleeps, or that of the day, which may be set. When
// it ends too early that costs a probe, or a lease that is taken anew.
type trust struct {
	began time.Time
	until atomic.Int64 // since began
	wall  atomic.Int64 // in ns since 1970
}

func newTrust() *trust { return &trust{began: time.Now()} }

func (t *trust) extend(start time.Time, d time.Duration) {
	t.until.Store(int64(start.Sub(t.began) + d))
	t.wall.Store(start.Add(d).UnixNano())
}

func (t *trust) holds() bool {
	now := time.Now()
	return int64(now.Sub(t.began)) < t.until.Load() && now.UnixNano() < t.wall.Load()
}

// sessionLock is the lead by an advisory lock of the session that rows are fetched in: to lose the lock and to lose the
// ability to fetch are one event.
type sessionLock struct {
	lane    *lane
	session *pgx.Conn
	backend int // the server process that answers, by its own word
	*trust
}

func (s *sessionLock) conn() *pgx.Conn { return s.session }

func (s *sessionLock) listens() bool { return true }

func (s *sessionLock) take(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, quickTimeout)
	defer cancel()
	if s.session == nil {
		conn, err := s.lane.relay.connect(ctx)
		if err != nil {
			return false, err
		}
		s.session, s.trust = conn, newTrust()
		if err := s.ownSession(ctx); err != nil {
			return false, err
		}
		if _, err := conn.Exec(ctx, setSession, sessionSettings()); err != nil {
			return false, err
		}
	}
	var won bool
	start := time.Now()
	if err := s.session.QueryRow(ctx, s.lane.sql.lock).Scan(&won, &s.backend); err != nil || !won {
		return false, err
	}
	s.heard(start)
	return true, s.listen(ctx)
}

// ownSession makes sure that the session is this relay's alone. Where a pooler is in between, the server process that
// answers is not the one of the handshake. If it is one of transactions, another connection gets the same one, as a rule
// the one that was used last.
func (s *sessionLock) ownSession(ctx context.Context) error {
	backend := func(conn *pgx.Conn) (pid uint32, err error) {
		err = conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
		return pid, err
	}
	first, err := backend(s.session)
	if err != nil || first == s.session.PgConn().PID() {
		return err
	}
	other, err := s.lane.relay.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(other)
	for range 5 {
		mine, err := backend(s.session)
		if err != nil {
			return err
		}
		theirs, err := backend(other)
		if err != nil {
			return err
		}
		if mine != first || mine == theirs {
			return errPooled
		}
	}
	return nil
}

// listen makes the session hear of commits.
func (s *sessionLock) listen(ctx context.Context) error {
	var channel string
	if err := s.session.QueryRow(ctx, "SELECT "+s.lane.relay.outbox.tables.channel()).Scan(&channel); err != nil {
		return err
	}
	_, err := s.session.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize())
	return err
}

// setSession makes those settings that the server knows, for the session.
const setSession = `SELECT set_config(name, value, false) FROM json_each_text($1::json) AS wanted (name, value) JOIN pg_settings USING (name)`

// ownSettings are those of each session that is this relay's own. Plans are made anew each time: one that was made for an
// empty table is a bad one for a full table. Statements are bounded by the relay. Where results come as text pgx
// reads these forms only.
const ownSettings = `"plan_cache_mode": "force_custom_plan", "statement_timeout": 0, "default_transaction_isolation": "read committed",
	"bytea_output": "hex", "DateStyle": "ISO"`

// sessionSettings are those of a session that leads or is to. The keepalives are the server's: by them it notices that the
// host is gone.
func sessionSettings() string {
	return fmt.Sprintf(`{"tcp_keepalives_idle": 5, "tcp_keepalives_interval": 3, "tcp_keepalives_count": 3, "tcp_user_timeout": 15000,
		"idle_session_timeout": %d, %s}`, idleTimeout.Milliseconds(), ownSettings)
}

// errPooled says that the session is none.
var errPooled = errors.New("the session changed between two statements: behind a transaction pooler set RelayConfig.Lease")

func (s *sessionLock) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var backend int
	start := time.Now()
	if err := s.session.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return err
	}
	if backend != s.backend {
		return errPooled
	}
	s.heard(start)
	return nil
}

func (s *sessionLock) heard(start time.Time) { s.extend(start, sessionTrust) }

func (s *sessionLock) trusted() bool { return s.holds() }

// keep has nothing to do: who fetches, probes.
func (s *sessionLock) keep(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (s *sessionLock) resign() { hangUp(s.session) }
