package outbox

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/reconnect"
)

// Parked is a message that was given up: the broker, or the relay, would not have it however often it was tried.
type Parked struct {
	// Message as it was enqueued, its body in Body. What cannot be read of a row that Enqueue did not write is left empty.
	Message
	// ID is its MessageId. It is what Requeue and Discard take.
	ID uuid.UUID
	// Reason is the error of the last attempt.
	Reason string
	// Attempts that were made.
	Attempts int
	// At is when it was parked.
	At time.Time
}

// parkedPage and parkedPageBytes bound what is read ahead.
const (
	parkedPage      = 100
	parkedPageBytes = 8 << 20
)

// Parked lists the messages that were parked, the first parked first. It reads a page at a time and holds no transaction in
// between, so what is parked or taken away meanwhile may be seen or not. It ends with the first error.
func (o *Outbox) Parked(ctx context.Context) iter.Seq2[Parked, error] {
	return func(yield func(Parked, error) bool) {
		after := int64(0)
		for {
			page, last, err := o.parkedPage(ctx, after)
			if err != nil {
				yield(Parked{}, fmt.Errorf("outbox: parked messages: %w", err))
				return
			}
			for _, p := range page {
				if !yield(p, nil) {
					return
				}
			}
			if len(page) == 0 {
				return
			}
			after = last
		}
	}
}

// parkedPage returns the next messages, as many as are not too large together.
func (o *Outbox) parkedPage(ctx context.Context, after int64) (page []Parked, last int64, err error) {
	if o.pool == nil {
		return nil, 0, errNoPool
	}
	rows, err := o.pool.Query(ctx, fmt.Sprintf(`SELECT %s, parked_id, attempts, reason, parked_at FROM (
    SELECT *, sum(octet_length(payload)) OVER older AS size, row_number() OVER older AS n
    FROM (SELECT * FROM %s WHERE parked_id > $1 ORDER BY parked_id LIMIT $2) AS next
    WINDOW older AS (ORDER BY parked_id)) AS sized
WHERE n = 1 OR size <= $3 ORDER BY parked_id`, rowColumns, o.tables.parked()), after, parkedPage, parkedPageBytes)
	if err != nil {
		return nil, 0, err
	}
	var r row
	var p Parked
	_, err = pgx.ForEachRow(rows, append(r.targets(), &last, &p.Attempts, &p.Reason, &p.At), func() error {
		p.ID, p.Message = r.messageID, r.enqueued()
		page = append(page, p)
		return nil
	})
	return page, last, err
}

// enqueued returns a row as it was enqueued, as far as it can be read.
func (r *row) enqueued() Message {
	var m reconnect.Message
	m, _ = r.message()
	e := Message{Exchange: m.Exchange, Key: m.Key, Publishing: m.Publishing}
	if r.orderingKey != nil {
		e.OrderingKey = *r.orderingKey
	}
	return e
}

// Requeue has parked messages sent again, as if they had just been enqueued, behind all that waits: with their MessageId
// and Timestamp, and all their attempts anew. It is one transaction. Messages that are not parked (any more) are named in
// the error, the first 20 of them; the others are on their way then.
func (o *Outbox) Requeue(ctx context.Context, ids ...uuid.UUID) error {
	return o.unpark(ctx, "requeue", ids, func(tx pgx.Tx, ids []string) ([]string, error) {
		lanes, err := selectAll[int](ctx, tx, "SELECT DISTINCT lane FROM "+o.tables.parked()+
			" WHERE message_id = ANY ($1::text[]::uuid[]) ORDER BY lane", ids)
		var done []string
		for _, lane := range lanes {
			some, err := selectAll[string](ctx, tx, o.requeueSQL(lane), ids, lane)
			if err != nil {
				return nil, err
			}
			done = append(done, some...)
		}
		return done, err
	})
}

// requeueSQL moves the parked rows of one lane back into it. The row begins a new life, but its time of enqueueing is
// the message's Timestamp.
func (o *Outbox) requeueSQL(lane int) string {
	return fmt.Sprintf(`WITH taken AS (
    DELETE FROM %s WHERE message_id = ANY ($1::text[]::uuid[]) AND lane = $2 RETURNING *)
INSERT INTO %s (%s) SELECT message_id, exchange, routing_key, ordering_key,
    jsonb_build_object('timestamp', CASE WHEN isfinite(created_at) THEN floor(extract(epoch FROM created_at))::bigint END)
        || coalesce(nullif(properties, 'null'), '{}'),
    headers, payload FROM taken ORDER BY parked_id
RETURNING message_id::text`, o.tables.parked(), o.tables.lane(lane), insertColumns)
}

// Discard deletes parked messages for good. Messages that are not parked (any more) are named in the error, the first 20 of
// them; the others are deleted then.
func (o *Outbox) Discard(ctx context.Context, ids ...uuid.UUID) error {
	return o.unpark(ctx, "discard", ids, func(tx pgx.Tx, ids []string) ([]string, error) {
		return selectAll[string](ctx, tx, "DELETE FROM "+o.tables.parked()+
			" WHERE message_id = ANY ($1::text[]::uuid[]) RETURNING message_id::text", ids)
	})
}

// unpark runs take, which takes parked messages away and returns whose, in a transaction, and says which were not there.
func (o *Outbox) unpark(ctx context.Context, what string, ids []uuid.UUID, take func(pgx.Tx, []string) ([]string, error)) error {
	if len(ids) == 0 {
		return nil
	}
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	var done []string
	err := o.inTx(ctx, func(tx pgx.Tx) (err error) {
		done, err = take(tx, texts)
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox: %s: %w", what, err)
	}
	if missing := without(texts, done); len(missing) > 0 {
		return fmt.Errorf("outbox: %s: not parked: %s", what, listed(missing))
	}
	return nil
}

// without returns the ids that are not among done.
func without(ids, done []string) []string {
	is := make(map[string]bool, len(done))
	for _, id := range done {
		is[id] = true
	}
	return slices.DeleteFunc(ids, func(id string) bool { return is[id] })
}

// listed names the first ids, and how many more there are.
func listed(ids []string) string {
	if more := len(ids) - maxFaults; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:maxFaults], ", "), more)
	}
	return strings.Join(ids, ", ")
}

// selectAll returns the one column of a query.
func selectAll[T any](ctx context.Context, db querier, sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}
