package acceptance

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/rpc"
	"github.com/warrenmq/warren/workqueue"
)

// inboxOf returns an inbox, and its database with an empty table of effects.
func inboxOf(t *testing.T) (*idempotency.Inbox, *pgxpool.Pool) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	inbox, err := idempotency.New(pool, "compose", idempotency.Config{Logger: testenv.Logger(t.Output())})
	require.NoError(t, err)
	require.NoError(t, inbox.Migrate(t.Context()))
	_, err = pool.Exec(t.Context(), `CREATE TABLE effects (id text NOT NULL)`)
	require.NoError(t, err)
	return inbox, pool
}

func effect(ctx context.Context, tx pgx.Tx, id string) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, id)
	return err
}

// effects are how often each id took effect.
func effects(t *testing.T, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT id FROM effects`)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	out := map[string]int{}
	for _, id := range ids {
		out[id]++
	}
	return out
}

// start runs r until the returned function is called.
func start(t *testing.T, r runner) (stop func(t *testing.T)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	require.True(t, waitFor(r.Ready(), time.Minute), "ready")
	return func(t *testing.T) {
		t.Helper()
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			require.Fail(t, "Run does not end")
		}
	}
}

// waitFor reports whether done is closed in time.
func waitFor(done <-chan struct{}, within time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(within):
		return false
	}
}

// A worker, a Retrier and an inbox, one around the other, while the links are cut: every message takes effect once, what
// fails at first comes again as the same message, and what fails for good is kept.
func TestRetrierAroundInbox(t *testing.T) {
	t.Parallel()
	const messages = 100
	b := testenv.Shared(t)
	conn := dialAs(t, b.URL())
	inbox, pool := inboxOf(t)
	queue := workqueue.Queue{Name: testenv.Name(t, "q")}
	policy := retry.Policy{MaxAttempts: 4, InitialDelay: 50 * time.Millisecond, Multiplier: 2}
	retrier, err := retry.New(t.Context(), conn, queue.Name, policy)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, q := range append(policy.Topology(queue.Name).Queues, queue.Topology().Queues...) {
			b.DeleteQueue(t, q.Name)
		}
	})
	worker, err := workqueue.NewWorker(conn, queue, retrier.Handle(inbox.Handle(func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
		n, err := strconv.Atoi(d.MessageId)
		if err != nil {
			return err
		}
		if err := effect(ctx, tx, d.MessageId); err != nil {
			return err
		}
		switch {
		case n%10 == 3:
			return retry.Permanent(errors.New("never"))
		case n%10 == 7 && retry.InfoOf(d).Attempt < 3:
			return errors.New("not at once")
		}
		return nil
	})), workqueue.WorkerConfig{Concurrency: 4})
	require.NoError(t, err)
	ctx := t.Context()
	stop := start(t, worker)
	producer, err := workqueue.NewProducer(conn, queue, reconnect.PublisherConfig{})
	require.NoError(t, err)
	for i := range messages {
		msg := amqp.Publishing{MessageId: strconv.Itoa(i)}
		require.NoError(t, producer.PublishBatch(ctx, []amqp.Publishing{msg, msg}), "each is sent twice")
		if i%25 == 24 {
			b.CutConnections(t, conn.Config().Name)
		}
	}
	testenv.Eventually(t, time.Minute, func() bool { return len(effects(t, pool)) == messages*9/10 }, "all that can took effect")
	letters, err := retry.NewDeadLetters(conn, queue.Name)
	require.NoError(t, err)
	testenv.Eventually(t, time.Minute, func() bool {
		n, err := letters.Count(ctx)
		require.NoError(t, err)
		return n >= 2*messages/10 // twice each, and once more where a cut came between copy and acknowledgement
	}, "what failed for good is kept")
	for id, times := range effects(t, pool) {
		require.Equal(t, 1, times, id)
	}
	for letter, err := range letters.All(ctx) {
		require.NoError(t, err)
		require.Equal(t, "3", letter.MessageId[len(letter.MessageId)-1:])
		require.Equal(t, "permanent", letter.Reason)
	}
	stop(t)
}

// A server that stores its replies with their effect: a call that is sent again after a cut is answered with the first
// reply, and executed once.
func TestServerRepliesFromItsInbox(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	conn := dialAs(t, b.URL())
	inbox, pool := inboxOf(t)
	queue := testenv.Name(t, "charge")
	t.Cleanup(func() { b.DeleteQueue(t, queue) })
	server, err := rpc.NewServer(conn, queue, inbox.HandleReply(func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) (amqp.Publishing, error) {
		return amqp.Publishing{Body: append([]byte("done "), d.Body...)}, effect(ctx, tx, string(d.Body))
	}), rpc.ServerConfig{Concurrency: 4})
	require.NoError(t, err)
	ctx := t.Context()
	stop := start(t, server)
	caller := dialAs(t, b.URL())
	client, err := rpc.NewClient(caller, rpc.ClientConfig{})
	require.NoError(t, err)
	const callers, calls = 8, 25
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range calls {
				body := strconv.Itoa(c) + "/" + strconv.Itoa(i)
				d, err := client.Idempotent().Call(ctx, queue, amqp.Publishing{Body: []byte(body)})
				if err != nil || string(d.Body) != "done "+body {
					t.Errorf("%s: %q, %v", body, d.Body, err)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	for range 6 {
		b.CutConnections(t, caller.Config().Name)
		b.CutConnections(t, conn.Config().Name)
		waitFor(finished, 300*time.Millisecond)
	}
	require.True(t, waitFor(finished, time.Minute), "calls are answered")
	got := effects(t, pool)
	require.Len(t, got, callers*calls)
	for id, times := range got {
		require.Equal(t, 1, times, id)
	}
	require.NoError(t, client.Close(t.Context()))
	stop(t)
}

// A request that came over an exchange and was handed back, by a server that stopped before it had begun with it, comes
// straight from the queue the next time: it is the same request, and is answered with the same reply when it is sent again.
func TestRequestHandedBackIsTheSameToTheInbox(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	conn := dialAs(t, b.URL())
	inbox, pool := inboxOf(t)
	queue := testenv.Name(t, "charge")
	exchange := queue + ".requests"
	t.Cleanup(func() {
		b.DeleteQueue(t, queue)
		ch, err := b.Dial(t).Channel()
		require.NoError(t, err)
		require.NoError(t, ch.ExchangeDelete(exchange, false, false))
	})
	begun, end := make(chan struct{}, 2), make(chan struct{})
	handler := inbox.HandleReply(func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) (amqp.Publishing, error) {
		begun <- struct{}{}
		if d.MessageId == "first" {
			<-end
		}
		return amqp.Publishing{Body: []byte("done " + d.MessageId)}, effect(ctx, tx, d.MessageId)
	})
	cfg := rpc.ServerConfig{Exchange: exchange, Keys: []string{"charge"}, Prefetch: 2}
	serve := func() (stop func(t *testing.T)) {
		server, err := rpc.NewServer(conn, queue, handler, cfg)
		require.NoError(t, err)
		return start(t, server)
	}
	stop := serve()
	client, err := rpc.NewClient(dialAs(t, b.URL()), rpc.ClientConfig{Exchange: exchange})
	require.NoError(t, err)
	call := func(id string) error {
		d, err := client.Idempotent().Call(t.Context(), "charge", amqp.Publishing{MessageId: id})
		if err == nil && string(d.Body) != "done "+id {
			err = errors.New("answered with " + string(d.Body))
		}
		return err
	}
	answered := make(chan error, 2)
	go func() { answered <- call("first") }()
	require.True(t, waitFor(begun, time.Minute), "the first is being handled")
	go func() { answered <- call("second") }()
	testenv.Eventually(t, time.Minute, func() bool { return b.Queue(t, queue).Unacked == 2 }, "the second is in the server's hands")
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop(t) }()
	testenv.Eventually(t, time.Minute, func() bool { return b.Queue(t, queue).Ready == 1 }, "the second is handed back")
	close(end)
	require.True(t, waitFor(stopped, time.Minute), "stopped")
	stop = serve()
	for range 2 {
		require.NoError(t, <-answered)
	}
	require.NoError(t, call("first"))
	require.NoError(t, call("second"))
	require.Equal(t, map[string]int{"first": 1, "second": 1}, effects(t, pool))
	require.NoError(t, client.Close(t.Context()))
	stop(t)
}
