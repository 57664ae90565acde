package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
	"github.com/warrenmq/warren/routing/direct"
	"github.com/warrenmq/warren/routing/topic"
	"github.com/warrenmq/warren/workqueue"
)

// Whoever may publish to a queue may put anything into it. Each of these messages has to end where it belongs, and those
// behind it have to come through, on the connection and the channels there are, whatever pattern consumes.

// job is what the handlers expect.
type job struct{ ID int }

// victim is a consumer of some pattern and the way to it.
type victim struct {
	t        *testing.T
	broker   *testenv.Broker
	name     string // begins all of its names
	exchange string
	key      string
	dlq      string // "" when what fails is dropped
	log      *syncBuffer

	mu   sync.Mutex
	seen map[int]int
}

// targets start a consumer of each pattern, which hands on what is a job and fails on what has a negative ID.
var targets = map[string]func(v *victim, conn *reconnect.Conn) runner{
	"workqueue": func(v *victim, conn *reconnect.Conn) runner { return v.workqueue(conn, workqueue.Queue{Name: v.name}) },
	"classic": func(v *victim, conn *reconnect.Conn) runner {
		return v.workqueue(conn, workqueue.Queue{Name: v.name, Classic: true})
	},
	"pubsub": func(v *victim, conn *reconnect.Conn) runner {
		v.exchange, v.key, v.dlq = v.name, "", v.name+".q.dlq"
		s, err := pubsub.NewSubscriber(conn, pubsub.Subscription{Exchange: pubsub.Exchange{Name: v.name}, Queue: v.name + ".q"},
			pubsub.JSON(v.handle), pubsub.SubscriberConfig{})
		require.NoError(v.t, err)
		return s
	},
	"direct, live": func(v *victim, conn *reconnect.Conn) runner {
		v.exchange, v.key = v.name, key
		s, err := direct.NewLiveSubscriber(conn, direct.Subscription{Exchange: direct.Exchange{Name: v.name}, Keys: []string{key}},
			direct.JSON(v.handle), direct.SubscriberConfig{})
		require.NoError(v.t, err)
		return s
	},
	"topic": func(v *victim, conn *reconnect.Conn) runner {
		v.exchange, v.key, v.dlq = v.name, key, v.name+".q.dlq"
		s, err := topic.NewSubscriber(conn, topic.Subscription{Exchange: topic.Exchange{Name: v.name}, Queue: v.name + ".q", Patterns: []string{"#"}},
			topic.JSON(v.handle), topic.SubscriberConfig{})
		require.NoError(v.t, err)
		return s
	},
	"consistenthash": func(v *victim, conn *reconnect.Conn) runner {
		v.exchange, v.key, v.dlq = v.name, v.name+".000", v.name+".dlq"
		s, err := consistenthash.NewConsumer(conn, consistenthash.Partitions{Name: v.name, Count: 1}, consistenthash.JSON(v.handle),
			consistenthash.ConsumerConfig{MaxAttempts: 1})
		require.NoError(v.t, err)
		return s
	},
}

func (v *victim) workqueue(conn *reconnect.Conn, q workqueue.Queue) runner {
	v.t.Helper()
	v.key, v.dlq = q.Name, q.DeadLetterQueue()
	w, err := workqueue.NewWorker(conn, q, workqueue.JSON(v.handle), workqueue.WorkerConfig{})
	require.NoError(v.t, err)
	return w
}

func (v *victim) handle(_ context.Context, j job) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen[j.ID]++
	if j.ID < 0 {
		return errors.New("failed")
	}
	return nil
}

func (v *victim) saw(id int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen[id] > 0
}

// hostile is a message that its sender meant harm with, or made by mistake.
type hostile struct {
	name    string
	msg     amqp.Publishing
	handled bool // it comes to the handler, which then fails; else it must not
}

// attack has each of the messages, and a good one behind it, sent to a consumer of each pattern.
func attack(t *testing.T, cfg reconnect.Config, all []hostile) {
	for name, start := range targets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := testenv.Shared(t)
			v := &victim{t: t, broker: b, name: shortName(t), log: &syncBuffer{}, seen: map[int]int{}}
			cfg := cfg
			cfg.Name, cfg.Logger = testenv.Name(t, "conn"), testenv.Logger(v.log)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			conn, err := reconnect.Dial(ctx, b.URL(), cfg)
			require.NoError(t, err)
			t.Cleanup(func() {
				cleanUp(t, conn, v.name)
				require.NoError(t, conn.Close(context.Background()))
			})
			v.endure(start(v, conn), all)
		})
	}
}

// endure runs the consumer while the messages are sent.
func (v *victim) endure(r runner, all []hostile) {
	t := v.t
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	select {
	case <-r.Ready():
	case <-time.After(20 * time.Second):
		require.FailNow(t, "not ready")
	}
	ch, err := v.broker.Dial(t).Channel()
	require.NoError(t, err)
	for i, h := range all {
		failing := -1 - i
		if h.msg.Body == nil {
			h.msg.Body = fmt.Appendf(nil, `{"ID":%d}`, failing)
		}
		h.msg.DeliveryMode = amqp.Persistent
		require.NoError(t, ch.PublishWithContext(ctx, v.exchange, v.key, true, false, h.msg), h.name)
		require.NoError(t, ch.PublishWithContext(ctx, v.exchange, v.key, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, `{"ID":%d}`, i)}))
		testenv.Eventually(t, 20*time.Second, func() bool { return v.saw(i) }, "%s: the message behind it", h.name)
		require.Equal(t, h.handled, v.saw(failing), h.name)
	}
	if v.dlq != "" {
		testenv.Eventually(t, 20*time.Second, func() bool { return v.broker.Queue(t, v.dlq).Ready == len(all) }, "all of them dead-lettered")
	}
	require.NotContains(t, v.log.String(), "lost", "on the connection and the channels there are")
	require.NotContains(t, v.log.String(), "\x1b", "nothing that a terminal obeys")
}

func TestHostileBodies(t *testing.T) {
	t.Parallel()
	attack(t, reconnect.Config{}, []hostile{
		{name: "empty", msg: amqp.Publishing{Body: []byte{}}},
		{name: "null", msg: amqp.Publishing{Body: []byte("null")}},
		{name: "trailing data", msg: amqp.Publishing{Body: []byte(`{"ID":-3} {"ID":-3}`)}},
		{name: "trailing NUL", msg: amqp.Publishing{Body: []byte("{\"ID\":-4}\x00")}},
		{name: "deep JSON", msg: amqp.Publishing{Body: bytes.Repeat([]byte("["), 1_000_000)}},
		{name: "deep JSON in a field that is not known", msg: amqp.Publishing{Body: []byte(`{"X":` + strings.Repeat(`{"X":`, 20_000) + "1" + strings.Repeat("}", 20_000) + `}`)}},
		{name: "a number without end", msg: amqp.Publishing{Body: append([]byte(`{"ID":`), bytes.Repeat([]byte("9"), 100_000)...)}},
		{name: "no UTF-8", msg: amqp.Publishing{Body: []byte("\xff\xfe{\"ID\":1}")}},
		{name: "terminal escapes", msg: amqp.Publishing{Body: []byte("\x1b]0;title\a\x1b[2J")}},
	})
}

// MaxBody: larger ones are dead-lettered without being decoded.
func TestHostileBodyAboveMaxBody(t *testing.T) {
	t.Parallel()
	attack(t, reconnect.Config{MaxBody: 1000}, []hostile{
		{name: "one byte too many", msg: amqp.Publishing{Body: append([]byte(`{"ID":-1}`), bytes.Repeat([]byte(" "), 1001-9)...)}},
		{name: "very large", msg: amqp.Publishing{Body: append([]byte(`{"ID":-2}`), bytes.Repeat([]byte(" "), 1<<20)...)}},
	})
}

func TestHostileHeaders(t *testing.T) {
	t.Parallel()
	deep := amqp.Table{"leaf": "x"}
	for range 25 { // the driver reads 32
		deep = amqp.Table{"t": deep, "a": []any{nil, true}}
	}
	attack(t, reconnect.Config{}, []hostile{
		{"deeper than we send", amqp.Publishing{Headers: deep}, true},
		{"larger than we send", amqp.Publishing{Headers: amqp.Table{"large": strings.Repeat("x", 100_000)}}, true},
		{"many", amqp.Publishing{Headers: amqp.Table{"many": make([]any, 8000)}}, true},
		{"names that are no text", amqp.Publishing{Headers: amqp.Table{"": "", "\xff\x00": "\xff\x00", strings.Repeat("n", 255): nil}}, true},
	})
}

// Forged own headers and forged headers of the broker: none of them is believed.
func TestHostileOwnHeaders(t *testing.T) {
	t.Parallel()
	table, death := amqp.Table{"x": int64(1)}, []any{amqp.Table{"count": int64(1 << 60), "queue": "elsewhere", "reason": "rejected"}}
	attack(t, reconnect.Config{}, []hostile{
		{"attempts", amqp.Publishing{Headers: amqp.Table{"warren-attempt": int64(1 << 60), "warren-key": table, "warren-return": table}}, true},
		{"of another type", amqp.Publishing{Headers: amqp.Table{"warren-attempt": table, "warren-key": []any{nil}, "warren-resize-end": "x"}}, true},
		{"deaths", amqp.Publishing{Headers: amqp.Table{"x-death": death, "x-first-death-queue": "elsewhere", "x-delivery-count": int64(1000)}}, true},
		{"deaths of another type", amqp.Publishing{Headers: amqp.Table{"x-death": "many", "x-delivery-count": "many"}}, true},
	})
}

func TestHostileIDs(t *testing.T) {
	t.Parallel()
	attack(t, reconnect.Config{}, []hostile{
		{"NUL", amqp.Publishing{MessageId: "a\x00b", CorrelationId: "\x00", Type: "\x00", AppId: "\x00"}, true},
		{"no UTF-8", amqp.Publishing{MessageId: "\xff\xfe", ContentType: "\xff", ContentEncoding: "\xff"}, true},
		{"terminal escapes", amqp.Publishing{MessageId: "\x1b]0;title\a\x1b[2J\r\n", CorrelationId: "\x1b[31m"}, true},
		{"long", amqp.Publishing{MessageId: strings.Repeat("i", 255)}, true},
		{"none", amqp.Publishing{Priority: 255, Timestamp: time.Unix(1<<40, 0)}, true},
	})
}

// Only an RPC server answers, so that nobody can have a message sent to a queue that he may not write to.
func TestHostileReplyTo(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	ch, err := b.Dial(t).Channel()
	require.NoError(t, err)
	other, err := ch.QueueDeclare(testenv.Name(t, "other"), false, false, true, false, nil)
	require.NoError(t, err)
	t.Run("patterns", func(t *testing.T) {
		attack(t, reconnect.Config{}, []hostile{
			{"queue of others", amqp.Publishing{ReplyTo: other.Name, CorrelationId: "c"}, true},
			{"CC as a header of no meaning", amqp.Publishing{ReplyTo: other.Name, Headers: amqp.Table{"cc": []any{other.Name}}}, true},
		})
	})
	require.Zero(t, b.Queue(t, other.Name).Ready)
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
