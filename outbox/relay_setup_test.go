package outbox

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// fake is a Publisher without a broker. It notes what it has confirmed, in order.
type fake struct {
	mu    sync.Mutex
	keys  []string // routing keys of confirmed messages
	ids   []string // their message ids
	calls []int    // messages of each call
	idle  time.Time
	// respond, when set, says what becomes of a batch.
	respond func(ctx context.Context, msgs []reconnect.Message) error
}

func (f *fake) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	f.mu.Lock()
	respond := f.respond
	f.calls = append(f.calls, len(msgs))
	f.mu.Unlock()
	var err error
	if respond != nil {
		err = respond(ctx, msgs)
	}
	verdicts, _ := judge(len(msgs), err)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, m := range msgs {
		if verdicts[i] == sent {
			f.keys, f.ids = append(f.keys, m.Key), append(f.ids, m.MessageId)
		}
	}
	return err
}

func (f *fake) set(respond func(ctx context.Context, msgs []reconnect.Message) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.respond = respond
}

// sent returns the keys of what was confirmed, in order.
func (f *fake) sent() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys)
}

func (f *fake) calledWith() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// each returns a response that asks fn about each message.
func each(fn func(m reconnect.Message) error) func(context.Context, []reconnect.Message) error {
	return func(_ context.Context, msgs []reconnect.Message) error {
		errs, any := make(reconnect.BatchError, len(msgs)), false
		for i, m := range msgs {
			errs[i] = fn(m)
			any = any || errs[i] != nil
		}
		if !any {
			return nil
		}
		return errs
	}
}

// running is a relay that runs.
type running struct {
	*Relay
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// relay starts a relay, which stops when the test ends, if not before.
func relay(t testing.TB, box *Outbox, pub Publisher, cfg RelayConfig) *running {
	t.Helper()
	r, err := NewRelay(box, pub, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{Relay: r, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(run.ended)
		run.err = r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-run.ended
	})
	return run
}

// stop stops the relay and returns what Run did.
func (r *running) stop(t testing.TB) error {
	t.Helper()
	r.cancel()
	select {
	case <-r.ended:
	case <-time.After(3 * patience):
		t.Fatal("Run did not return")
	}
	return r.err
}

// store enqueues messages with the keys, in one transaction.
func store(t testing.TB, box *Outbox, keys ...string) {
	t.Helper()
	msgs := make([]Message, len(keys))
	for i, key := range keys {
		msgs[i] = Message{Exchange: "events", Key: key, Publishing: amqp.Publishing{Body: []byte(key)}}
	}
	storeAll(t, box, msgs...)
}

func storeAll(t testing.TB, box *Outbox, msgs ...Message) {
	t.Helper()
	require.NoError(t, box.InTx(context.Background(), func(tx pgx.Tx) error {
		return box.Enqueue(context.Background(), tx, msgs...)
	}))
}

// numbered returns prefix0, prefix1 and so on.
func numbered(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	return keys
}

// chaos reports whether the long forms are wanted.
func chaos() bool { return os.Getenv("WARREN_CHAOS") != "" }

// waiting returns how many rows the lanes hold.
func waiting(t testing.TB, box *Outbox) int64 {
	t.Helper()
	s, err := box.Stats(context.Background())
	require.NoError(t, err)
	return s.Waiting
}

func drained(t testing.TB, box *Outbox) {
	t.Helper()
	testenv.Eventually(t, 3*patience, func() bool { return waiting(t, box) == 0 }, "the outbox is empty")
}
