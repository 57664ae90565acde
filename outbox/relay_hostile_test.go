package outbox

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// A row of another program whose time is none, or cannot be one of Go's, keeps nobody back: neither the relay nor whoever
// looks at what waits and what was parked.
func TestTimesThatAreNone(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	for _, at := range []string{"infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "294276-12-31 00:00:00+00"} {
		exec(t, box.pool, "INSERT INTO outbox (message_id, exchange, routing_key, payload, created_at) VALUES ($1, '', $2, '', $2::text::timestamptz)",
			uuid.New(), at)
		require.GreaterOrEqual(t, stats(t, box).OldestAge, time.Duration(0))
	}
	park(t, box, 0, "to see them there")
	all := parkedOf(t, box)
	require.Len(t, all, 4)
	for _, p := range all {
		require.NoError(t, box.Requeue(t.Context(), p.ID), p.Key)
	}
	exec(t, box.pool, "UPDATE outbox SET created_at = routing_key::timestamptz")
	store(t, box, "after")
	relay(t, box, pub, RelayConfig{})
	drained(t, box)
	require.Len(t, pub.sent(), 5)
}

// Tables that were restored from a dump: ids begin anywhere and have no transactions of this server. There is nothing to do.
func TestRestoredTables(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	exec(t, box.pool, `INSERT INTO outbox (id, message_id, exchange, routing_key, payload) OVERRIDING SYSTEM VALUE
		SELECT 5000000000 + 7 * n, gen_random_uuid(), '', n::text, '' FROM generate_series(0, 99) n`)
	exec(t, box.pool, "SELECT setval('outbox_id_seq', 5000000700)")
	relay(t, box, pub, RelayConfig{Batch: 30})
	drained(t, box)
	store(t, box, "100", "101")
	drained(t, box)
	require.Equal(t, numbered("", 102), pub.sent())
}

// However many notifications come, they are one reason to look, not one each, and none is kept in memory.
func TestWakeUpStorm(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	asked := new(queries)
	box := boxIn(t, newPool(t, url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = asked }), Config{})
	r := relay(t, box, new(fake), RelayConfig{})
	testenv.Eventually(t, patience, func() bool { return leading(r) }, "it leads")
	other := newPool(t, url, nil)
	before, start := asked.n.Load(), time.Now()
	exec(t, other, "SELECT count(pg_notify("+box.tables.channel()+", n::text)) FROM generate_series(1, 5000) n")
	testenv.Eventually(t, patience, func() bool { return time.Since(start) > 2*time.Second }, "two seconds pass")
	t.Logf("%d statements for 5,000 notifications", asked.n.Load()-before)
	require.Less(t, asked.n.Load()-before, int64(200))
}

// Tables that only have the name of a lane are not one: neither another outbox nor a copy that somebody made of a table.
func TestTablesThatOnlyLookLikeALane(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), nil)
	first, second, pub := boxIn(t, pool, Config{}), boxIn(t, pool, Config{Table: "outbox_2"}), new(fake)
	store(t, second, "of another outbox")
	store(t, first, "a", "b")
	exec(t, pool, "CREATE TABLE outbox_1 AS TABLE outbox")
	require.EqualValues(t, 2, waiting(t, first))
	relay(t, first, pub, RelayConfig{})
	drained(t, first)
	store(t, first, "c")
	drained(t, first)
	start := time.Now()
	testenv.Eventually(t, patience, func() bool { return time.Since(start) > 500*time.Millisecond }, "time for whoever wants to lead more lanes")
	require.Equal(t, []string{"a", "b", "c"}, pub.sent())
	require.EqualValues(t, 1, waiting(t, second))
}

// A table that was emptied with its ids drawn anew while the relay runs: rows below its cursor are found by the sweep, and
// from then on at once.
func TestSweepNoticesIdsThatBeginAnew(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	r, err := NewRelay(box, new(fake), RelayConfig{Batch: 10})
	require.NoError(t, err)
	l := newLane(r, 0, nil)
	o := &sessionLock{lane: l}
	won, err := o.take(t.Context())
	require.NoError(t, err)
	require.True(t, won)
	defer o.resign()
	term := newTerm(l, o)
	term.sending = t.Context()
	fetch := func(sweep bool) int {
		rows, _, err := term.fetch(sweep)
		require.NoError(t, err)
		l.inFlight.reset(nil)
		return len(rows)
	}
	store(t, box, numbered("old.", 5)...)
	require.NoError(t, term.recover())
	require.Equal(t, 5, fetch(false))
	term.tracker.floor.open = false // as soon as whatever else runs on the server has ended
	exec(t, box.pool, "TRUNCATE outbox RESTART IDENTITY")
	store(t, box, "new.0")
	require.Zero(t, fetch(false))
	require.Equal(t, 1, fetch(true))
	store(t, box, "new.1")
	require.Equal(t, 2, fetch(false))
}

// A session that is dead without a word, as behind a firewall that has forgotten it, keeps what was confirmed from being
// deleted for a while, and so from sending more than a Batch; for no longer than it takes to notice.
func TestDeadSessionOfTheCompleter(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresNode(t).URL() // a session that is stopped keeps databases of the same server from being dropped
	box, pub := boxIn(t, newPool(t, url, nil), Config{}), new(fake)
	relay(t, box, pub, RelayConfig{Batch: 10})
	store(t, box, "first")
	drained(t, box)
	testenv.FreezeBackend(t, url, twoSessions(t, url)[1])
	start := time.Now()
	store(t, box, numbered("", 50)...)
	testenv.Eventually(t, 5*patience, func() bool { return len(pub.sent()) == 51 }, "all are sent")
	t.Logf("all were sent after %v", time.Since(start).Round(time.Millisecond))
	require.Less(t, time.Since(start), 3*quickTimeout, "target: the time that a statement may take")
	drained(t, box)
}

// A slow way to the database: a backlog of large messages comes over it in pieces that take less time than a database has to
// answer in, and so the lead is not lost over it. 24 MB at 2 MB/s in make chaos, which is too much for one piece; else 4 MB.
func TestChaosSlowWayToTheDatabase(t *testing.T) {
	t.Parallel()
	rows := 4
	if chaos() {
		rows = 24
	}
	url := testenv.Postgres(t)
	proxy := testenv.Proxy(t, url)
	var log logged
	far := boxIn(t, newPool(t, proxy.URL(), nil), Config{Logger: testenv.Logger(&log)})
	near, pub := boxIn(t, newPool(t, url, nil), Config{}), new(fake)
	relay(t, far, pub, RelayConfig{})
	store(t, near, "first")
	drained(t, near)
	byCursor(t, far)
	proxy.Slow(2 << 20)
	start := time.Now()
	for range rows {
		storeAll(t, near, Message{Key: "k", Publishing: amqp.Publishing{Body: make([]byte, 1<<20)}})
	}
	testenv.Eventually(t, 6*patience, func() bool { return len(pub.sent()) == rows+1 }, "all are sent")
	t.Logf("%d MB were sent after %v", rows, time.Since(start).Round(time.Millisecond))
	proxy.Heal()
	drained(t, near)
	require.NotContains(t, log.String(), "no longer leads")
}

// Whatever way of queries and whatever forms of texts the pool has, and whatever the tables are called, the relay does all of
// its work: it sends, archives, notes failures, parks, and sends later.
func TestRelayInEveryQueryMode(t *testing.T) {
	t.Parallel()
	named := Config{Schema: `Sche"ma; --`, Table: `it's "a" \ tåble %s $1`, Lanes: 2, Archive: true}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			url := testenv.Postgres(t)
			box, pub := boxIn(t, newPool(t, url, nil), named), new(fake)
			pool := newPool(t, url, func(cfg *pgxpool.Config) {
				cfg.ConnConfig.DefaultQueryExecMode = mode
				cfg.ConnConfig.RuntimeParams["timezone"] = "Asia/Kathmandu"
				cfg.ConnConfig.RuntimeParams["datestyle"] = "German, DMY"
				cfg.ConnConfig.RuntimeParams["intervalstyle"] = "sql_standard"
				cfg.ConnConfig.RuntimeParams["bytea_output"] = "escape"
			})
			odd := boxIn(t, pool, named)
			pub.set(each(func(m reconnect.Message) error {
				if m.Key == "bad" {
					return errors.New("no")
				}
				return nil
			}))
			later := time.Now().Add(300 * time.Millisecond)
			storeAll(t, odd, Message{Key: "now"}, Message{Key: "bad"}, Message{Key: "later", NotBefore: later})
			relay(t, odd, pub, RelayConfig{MaxAttempts: 2, BackoffMin: time.Millisecond})
			testenv.Eventually(t, patience, func() bool {
				s := stats(t, box)
				return s.Parked == 1 && s.Waiting+s.Scheduled+s.Retrying == 0
			}, "all are settled")
			require.ElementsMatch(t, []string{"now", "later"}, pub.sent())
			require.False(t, time.Now().Before(later))
			require.EqualValues(t, 2, scan[int64](t, pool, "SELECT count(*) FROM "+box.tables.archive()))
			// The first lane makes the days; what the other has sent before is in the default partition.
			tomorrow := "SELECT to_regclass(" + literal(box.tables.partition(time.Now().UTC().AddDate(0, 0, 1))) + ") IS NOT NULL"
			testenv.Eventually(t, patience, func() bool { return scan[bool](t, pool, tomorrow) }, "the archive has its days")
			require.Equal(t, "bad", parkedOf(t, box)[0].Key)
		})
	}
}

// A relay that is not sure of its lead when it has waited for room sends nothing: somebody else may lead by then.
func TestNothingIsSentWithoutTheLead(t *testing.T) {
	t.Parallel()
	box, err := New(newPool(t, "postgres://nobody@127.0.0.1:1/none", nil), Config{})
	require.NoError(t, err)
	pub := new(fake)
	r, err := NewRelay(box, pub, RelayConfig{Batch: 2})
	require.NoError(t, err)
	l, o := newLane(r, 0, nil), new(unsure)
	o.sure.Store(true)
	term := newTerm(l, o)
	term.sending = t.Context()
	waits := &result{term: term, sent: []*outgoing{{id: 1}, {id: 2}}}
	l.done.add(waits) // nobody writes it

	ended := make(chan error, 1)
	lead, lose := context.WithCancel(t.Context())
	defer lose()
	term.progress.begin() // as send does
	go func() { ended <- term.sendChunk(lead, []*outgoing{{id: 3, message: reconnect.Message{Key: "a"}}}) }()
	testenv.Eventually(t, patience, func() bool { return term.progress.stuck() }, "it waits for room")
	o.sure.Store(false)
	l.done.settled(waits, []int64{1, 2}, &waits.sent)
	asked := o.asked.Load()
	testenv.Eventually(t, patience, func() bool { return o.asked.Load() > asked+3 || len(pub.sent()) > 0 }, "it waits for its lead")
	require.Empty(t, pub.sent())
	o.sure.Store(true)
	testenv.Eventually(t, patience, func() bool { return len(pub.sent()) == 1 }, "it sends when it is sure")
	require.NoError(t, <-ended)
}

// The machine sleeps, or its clock is set, while a relay leads: by neither clock is the lead taken for held too long.
func TestTrustEndsByEitherClock(t *testing.T) {
	tr, now := newTrust(), time.Now()
	require.False(t, tr.holds())
	tr.extend(now, time.Minute)
	require.True(t, tr.holds())
	tr.wall.Store(now.Add(-time.Second).UnixNano()) // it slept a minute, which the monotonic clock does not know
	require.False(t, tr.holds())
	tr.extend(now, time.Minute)
	tr.wall.Store(now.Add(time.Hour).UnixNano()) // its clock was set back by an hour
	tr.until.Store(int64(now.Sub(tr.began)))
	require.False(t, tr.holds())
}

// unsure is a lead that comes and goes.
type unsure struct {
	office
	sure  atomic.Bool
	asked atomic.Int64
}

func (u *unsure) trusted() bool { u.asked.Add(1); return u.sure.Load() }
