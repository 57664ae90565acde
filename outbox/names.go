package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/internal/migrate"
)

const (
	maxLanes = 64

	versionsSuffix = "schema"

	// longestSuffix is of the partition of a day: "_archive_20060102".
	longestSuffix = len("_archive_20060102")

	// rowColumns are the columns that make a message. Every table of messages has them: those of the lanes, of parked, of
	// scheduled and of archived ones. A row is read from them in this order.
	rowColumns = "message_id, exchange, routing_key, ordering_key, properties, headers, payload, created_at"
)

// tables knows the names of an outbox's tables, all of them quoted and ready for SQL.
//
// Columns beside rowColumns, and the tables' own columns:
//
//	lane(n)       id
//	retry()       lane, id, attempts, next_attempt_at, last_error    key (lane, id)
//	parked()      parked_id, lane, id, attempts, reason, parked_at   created_at must be given, parked_at not
//	scheduled()   scheduled_id, lane, available_at
//	lease()       lane, owner, term, expires_at                      key (lane)
//	archive()     lane, id, sent_at                                  created_at must be given, sent_at not
type tables struct{ schema, base string }

// lane returns the hot table of a lane: "outbox" for 0, which is all there is by default, then "outbox_1" and so on.
func (t tables) lane(n int) string {
	if n == 0 {
		return migrate.Qualify(t.schema, t.base)
	}
	return t.side(fmt.Sprint(n))
}

// side returns the table "outbox_<name>".
func (t tables) side(name string) string { return migrate.Qualify(t.schema, t.base+"_"+name) }

func (t tables) retry() string     { return t.side("retry") }
func (t tables) parked() string    { return t.side("parked") }
func (t tables) scheduled() string { return t.side("scheduled") }
func (t tables) lease() string     { return t.side("lease") }
func (t tables) archive() string   { return t.side("archive") }
func (t tables) versions() string  { return t.side(versionsSuffix) }

// oid is an SQL expression for what tells the table of a lane from any other in the database, however it was found: by
// search_path two outboxes of one name can be two.
func (t tables) oid(lane int) string { return fmt.Sprintf("%s::regclass::oid", literal(t.lane(lane))) }

// lockSpace is the upper half of the keys of advisory locks, so that they meet none of the user's own: "WROB" in ASCII.
const lockSpace = 0x57524f42

// lockKey is an SQL expression for the bigint key of the advisory lock that the leader of a lane holds: lockSpace and the
// table.
func (t tables) lockKey(lane int) string {
	return fmt.Sprintf("((%d::bigint << 32) | %s::bigint)", lockSpace, t.oid(lane))
}

// channel is an SQL expression for the name of the channel on which relays of this outbox are woken.
func (t tables) channel() string { return "('warren_outbox_' || " + t.oid(0) + "::text)" }

// querier is what reads of the tables need: a pool, a connection, a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// lanes returns the lanes that there are tables of, in ascending order. There can be more than Config.Lanes says: what was
// enqueued by a program with more of them must leave all the same. What counts is which were made, not which names there are:
// "outbox_2" may be another outbox, and "outbox_1" a copy that somebody made before a repair.
func (t tables) lanes(ctx context.Context, db querier) ([]int, error) {
	return selectAll[int](ctx, db, "SELECT DISTINCT substr(unit, 6)::int AS lane FROM "+t.versions()+
		" WHERE unit LIKE 'lane %' ORDER BY lane")
}

// literal returns s as an SQL string.
func literal(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) { // means itself only where standard_conforming_strings is on
		return " E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
	}
	return "'" + s + "'"
}
