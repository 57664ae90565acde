package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// park moves everything in a lane to the parked messages, as a relay that gives up does.
func park(t testing.TB, box *Outbox, lane int, reason string) {
	t.Helper()
	exec(t, box.pool, fmt.Sprintf(`WITH gone AS (DELETE FROM %s RETURNING *)
		INSERT INTO %s (lane, id, %s, attempts, reason) SELECT %d, id, %s, 10, $1 FROM gone ORDER BY id`,
		box.tables.lane(lane), box.tables.parked(), rowColumns, lane, rowColumns), reason)
}

func parkedOf(t testing.TB, box *Outbox) []Parked {
	t.Helper()
	var all []Parked
	for p, err := range box.Parked(context.Background()) {
		require.NoError(t, err)
		all = append(all, p)
	}
	return all
}

func enqueue(t testing.TB, box *Outbox, msgs ...Message) {
	t.Helper()
	require.NoError(t, box.InTx(context.Background(), func(tx pgx.Tx) error { return box.Enqueue(context.Background(), tx, msgs...) }))
}

func TestParked(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{Lanes: 2})
	require.Empty(t, parkedOf(t, box))
	full := Message{Exchange: "orders", Key: "order.created", OrderingKey: "42", Publishing: amqp.Publishing{
		Headers: everyKind(), ContentType: "text/plain", Priority: 9, MessageId: uuid.NewString(),
		Timestamp: time.Unix(1767225600, 0).UTC(), Body: []byte("body"),
	}}
	plain := Message{Key: "k", Publishing: amqp.Publishing{MessageId: uuid.NewString()}, OrderingKey: "43"}
	enqueue(t, box, full, plain)
	require.NotEqual(t, laneOf("42", 2), laneOf("43", 2))
	enqueuedAt := laneMessages(t, box, laneOf("43", 2))[0].Timestamp
	park(t, box, 0, "no queue")
	park(t, box, 1, "no queue")

	all := parkedOf(t, box)
	require.Len(t, all, 2)
	if all[0].ID.String() != full.MessageId {
		all[0], all[1] = all[1], all[0]
	}
	require.Equal(t, full, all[0].Message)
	require.Equal(t, full.MessageId, all[0].ID.String())
	require.Equal(t, "no queue", all[0].Reason)
	require.Equal(t, 10, all[0].Attempts)
	require.WithinDuration(t, time.Now(), all[0].At, time.Minute)

	err := box.Requeue(t.Context(), all[0].ID, uuid.New(), all[1].ID)
	require.ErrorContains(t, err, "not parked")
	require.NotContains(t, err.Error(), full.MessageId)
	require.Empty(t, parkedOf(t, box))
	back := laneMessages(t, box, laneOf("42", 2))
	require.Len(t, back, 1)
	require.Equal(t, full.Publishing, back[0].Publishing)
	again := laneMessages(t, box, laneOf("43", 2))[0]
	require.Equal(t, plain.MessageId, again.MessageId)
	require.Equal(t, enqueuedAt.Unix(), again.Timestamp.Unix(), "its time is still that of its enqueueing")
	stats, err := box.Stats(t.Context())
	require.NoError(t, err)
	require.Less(t, stats.OldestAge, time.Minute)

	park(t, box, 0, "again")
	park(t, box, 1, "again")
	require.NoError(t, box.Discard(t.Context(), all[0].ID))
	require.ErrorContains(t, box.Discard(t.Context(), all[0].ID), "not parked: "+full.MessageId)
	require.Len(t, parkedOf(t, box), 1)
	require.NoError(t, box.Discard(t.Context()))
	require.NoError(t, box.Requeue(t.Context()))
	require.Len(t, parkedOf(t, box), 1)
}

// TestParkedPages: any number of any size can be listed, in order, and the listing broken off.
func TestParkedPages(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	msgs := make([]Message, 250)
	for i := range msgs {
		msgs[i].Key = fmt.Sprint(i)
	}
	for _, i := range []int{3, 4, 200} {
		msgs[i].Body = make([]byte, 7<<20) // more than a page together
	}
	msgs[5].Body = make([]byte, 9<<20) // more than a page alone
	enqueue(t, box, msgs...)
	park(t, box, 0, "test")
	for i, p := range parkedOf(t, box) {
		require.Equal(t, fmt.Sprint(i), p.Key)
		require.Len(t, p.Body, len(msgs[i].Body))
	}
	seen := 0
	for range box.Parked(t.Context()) {
		if seen++; seen == 7 {
			break
		}
	}
	require.Equal(t, 7, seen)
	testenv.Eventually(t, patience, func() bool { return box.pool.Stat().AcquiredConns() == 0 }, "but for a notification, no connection is kept")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range box.Parked(ctx) {
		require.ErrorIs(t, err, context.Canceled)
	}
}

// TestParkedOfOthers: a row that nobody can read is listed, and can be discarded.
func TestParkedOfOthers(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	exec(t, box.pool, `INSERT INTO outbox (message_id, exchange, routing_key, properties, headers, payload)
		VALUES (gen_random_uuid(), 'e', 'k', '{"priority": 300}', '[]', 'body')`)
	park(t, box, 0, "headers: …")
	all := parkedOf(t, box)
	require.Len(t, all, 1)
	require.Equal(t, "e", all[0].Exchange)
	require.Equal(t, "body", string(all[0].Body))
	require.Nil(t, all[0].Headers)
	require.NoError(t, box.Discard(t.Context(), all[0].ID))
}

func TestStats(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{Lanes: 3})
	stats, err := box.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, Stats{}, stats)

	for range 3 { // one to each lane
		enqueue(t, box, Message{Key: "k"}, Message{Key: "k"}, Message{Key: "k", NotBefore: time.Now().Add(time.Hour)})
	}
	exec(t, box.pool, "UPDATE outbox_1 SET created_at = now() - interval '90 s' WHERE id = 1")
	exec(t, box.pool, "INSERT INTO outbox_retry SELECT 1, id, 1, now(), 'no' FROM outbox_1")
	stats, err = box.Stats(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 90, stats.OldestAge.Seconds(), 60)
	require.GreaterOrEqual(t, stats.OldestAge, 90*time.Second)
	stats.OldestAge = 0
	require.Equal(t, Stats{Waiting: 6, Scheduled: 3, Retrying: 2}, stats)
	park(t, box, 0, "test")
	stats, err = box.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(2), stats.Parked)
	require.Equal(t, int64(4), stats.Waiting)
}

// TestUnparkMany: any number of ids can be given, and however many of them are not there, the error stays readable.
func TestUnparkMany(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	enqueue(t, box, somewhere(100)...)
	park(t, box, 0, "no queue")
	var ids []uuid.UUID
	for _, p := range parkedOf(t, box) {
		ids = append(ids, p.ID)
	}
	for range 50_000 {
		ids = append(ids, uuid.New())
	}
	start := time.Now()
	err := box.Requeue(t.Context(), ids...)
	t.Logf("%d ids in %v", len(ids), time.Since(start).Round(time.Millisecond))
	require.ErrorContains(t, err, "not parked: "+ids[100].String())
	require.ErrorContains(t, err, "and 49980 more")
	require.Less(t, len(err.Error()), 2000)
	require.Len(t, laneRows(t, box, 0), 100)
	require.ErrorContains(t, box.Discard(t.Context(), ids[0]), "not parked")
}
