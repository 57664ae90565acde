package outbox

import (
	"fmt"
	"strings"
)

// statementsOfLane are a relay's statements for one lane.
type statementsOfLane struct {
	lock, leaseFree, leaseClaim, leaseRelease string
	lastID, byState, byCursor                 string
	remove, forgive, postpone, park           string
	release, nextRelease                      string
	dueRetries, nextRetry, forgetRetries      string
	countParked                               string
}

// maxFetchBytes bounds the bodies of one fetch, but for the first of them: what a way to the database of 1 MB/s brings within
// quickTimeout.
const maxFetchBytes = 8 << 20

func newStatementsOfLane(t tables, n int, archive bool) statementsOfLane {
	s := statementsOfLane{
		lock: fmt.Sprintf("SELECT pg_try_advisory_lock(%s), pg_backend_pid()", t.lockKey(n)),

		leaseFree: fmt.Sprintf("SELECT NOT EXISTS (SELECT FROM %s WHERE lane = %d AND expires_at > clock_timestamp())", t.lease(), n),
		leaseClaim: fmt.Sprintf(`INSERT INTO %s AS l (lane, owner, term, expires_at)
VALUES (%d, $1, 1, clock_timestamp() + $2::bigint * interval '1 microsecond')
ON CONFLICT (lane) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at,
    term = l.term + (l.owner <> excluded.owner)::int
WHERE l.owner = excluded.owner OR l.expires_at <= clock_timestamp()`, t.lease(), n),
		leaseRelease: fmt.Sprintf("DELETE FROM %s WHERE lane = %d AND owner = $1", t.lease(), n),

		lastID: fmt.Sprintf("SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence(%s, 'id')::regclass), 0)", literal(t.lane(n))),
	}
	s.fetches(t, n)
	s.settles(t, n, archive)
	s.plans(t, n)
	return s
}

// columnsOf lists rowColumns of a table's alias.
func columnsOf(alias string) string {
	names := strings.Split(rowColumns, ", ")
	for i := range names {
		names[i] = alias + "." + names[i]
	}
	return strings.Join(names, ", ")
}

// fetches makes the two ways to fetch: both take ids and a limit, the one by cursor the cursor, the one by state whether to
// leave out what has failed before. Both return one row with only the snapshot's bounds when there is nothing else. All of it is one statement, and so one snapshot. Rows come out
// in the order in which the window goes over them; who reads them makes sure.
//
// That a failed row's time has not come is asked with a subquery in the place of a value: a join could cost the order in
// which the primary key is read.
func (s *statementsOfLane) fetches(t tables, n int) {
	const bounded = `SELECT pg_snapshot_xmin(s.taken)::text::bigint, pg_snapshot_xmax(s.taken)::text::bigint, r.id, r.attempts, %s
FROM (SELECT pg_current_snapshot() AS taken OFFSET 0) s LEFT JOIN (
    SELECT * FROM (
        SELECT f.*, sum(octet_length(f.payload)) OVER (ORDER BY f.id ROWS UNBOUNDED PRECEDING) - octet_length(f.payload) AS before
        FROM (%s) f) b WHERE b.before < %d) r ON true`
	retry := func(column string) string {
		return fmt.Sprintf("(SELECT f.%s FROM %s f WHERE f.lane = %d AND f.id = t.id)", column, t.retry(), n)
	}
	bind := func(inner string) string { return fmt.Sprintf(bounded, columnsOf("r"), inner, maxFetchBytes) }
	s.byState = bind(fmt.Sprintf(`SELECT t.id, coalesce(%s, 0) AS attempts, %s FROM %s t
        WHERE t.id <> ALL ($1::bigint[]) AND coalesce(%s, '-infinity') <= CASE WHEN $3 THEN '-infinity' ELSE clock_timestamp() END
        ORDER BY t.id LIMIT $2`, retry("attempts"), columnsOf("t"), t.lane(n), retry("next_attempt_at")))
	s.byCursor = bind(fmt.Sprintf(`(SELECT t.id, 0 AS attempts, %s FROM %s t WHERE t.id = ANY ($1::bigint[]))
        UNION ALL (SELECT t.id, 0, %s FROM %s t WHERE t.id > $3 ORDER BY t.id LIMIT $2)
        ORDER BY id LIMIT $2`, columnsOf("t"), t.lane(n), columnsOf("t"), t.lane(n)))
}

// settles makes what ends a row's way, and what notes its failure. A row is known by id and message id: after a failover of
// the database its id may be another row's.
func (s *statementsOfLane) settles(t tables, n int, archive bool) {
	s.remove = fmt.Sprintf("DELETE FROM %s WHERE id = ANY ($1::bigint[]) AND message_id = ANY ($2::uuid[])", t.lane(n))
	if archive {
		s.remove = fmt.Sprintf("WITH gone AS (%s RETURNING *) INSERT INTO %s (lane, id, %s) SELECT %d, id, %s FROM gone",
			s.remove, t.archive(), rowColumns, n, rowColumns)
	}
	s.forgive = fmt.Sprintf("DELETE FROM %s WHERE lane = %d AND id = ANY ($1::bigint[])", t.retry(), n)
	const told = "unnest($1::bigint[], $2::uuid[], $3::int[], $4::text[]"
	s.postpone = fmt.Sprintf(`INSERT INTO %s (lane, id, attempts, next_attempt_at, last_error)
SELECT %d, f.id, f.attempts, clock_timestamp() + f.delay * interval '1 microsecond', f.reason
FROM %s, $5::bigint[]) AS f (id, message_id, attempts, reason, delay)
WHERE EXISTS (SELECT FROM %s t WHERE t.id = f.id AND t.message_id = f.message_id)
ON CONFLICT (lane, id) DO UPDATE
SET attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at, last_error = excluded.last_error`,
		t.retry(), n, told, t.lane(n))
	s.park = fmt.Sprintf(`WITH gone AS (
    DELETE FROM %s t USING %s) AS f (id, message_id, attempts, reason)
    WHERE t.id = f.id AND t.message_id = f.message_id RETURNING t.*, f.attempts, f.reason)
INSERT INTO %s (lane, id, attempts, reason, %s) SELECT %d, id, attempts, reason, %s FROM gone ORDER BY id`,
		t.lane(n), told, t.parked(), rowColumns, n, rowColumns)
}

// plans makes what moves scheduled rows to their lane and finds failed rows whose time has come.
func (s *statementsOfLane) plans(t tables, n int) {
	s.release = fmt.Sprintf(`WITH due AS (
    SELECT scheduled_id FROM %[1]s WHERE lane = %[2]d AND available_at <= clock_timestamp()
    ORDER BY available_at, scheduled_id LIMIT %[3]d FOR UPDATE SKIP LOCKED),
moved AS (DELETE FROM %[1]s s USING due WHERE s.scheduled_id = due.scheduled_id RETURNING s.*)
INSERT INTO %[4]s (%[5]s) SELECT %[5]s FROM moved ORDER BY available_at, scheduled_id`,
		t.scheduled(), n, maxReleased, t.lane(n), insertColumns) // created_at is now: what was not due did not wait
	const in = "(extract(epoch FROM min(%s) - clock_timestamp()) * 1000000)::bigint"
	s.nextRelease = fmt.Sprintf("SELECT "+in+" FROM %s WHERE lane = %d", "available_at", t.scheduled(), n)
	s.dueRetries = fmt.Sprintf(`SELECT id, attempts FROM %s WHERE lane = %d AND next_attempt_at <= clock_timestamp()
AND id <> ALL ($1::bigint[]) ORDER BY next_attempt_at, id LIMIT $2`, t.retry(), n) // who has waited longest comes first
	s.nextRetry = fmt.Sprintf("SELECT "+in+" FROM %s WHERE lane = %d AND next_attempt_at > clock_timestamp()",
		"next_attempt_at", t.retry(), n)
	s.forgetRetries = fmt.Sprintf(`DELETE FROM %s f WHERE f.lane = %d AND f.id = ANY ($1::bigint[])
AND NOT EXISTS (SELECT FROM %s t WHERE t.id = f.id)`, t.retry(), n, t.lane(n))
	s.countParked = fmt.Sprintf("SELECT count(*) FROM %s WHERE lane = %d", t.parked(), n)
}
