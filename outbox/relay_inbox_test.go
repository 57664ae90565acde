package outbox

import (
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// inbox takes everything that comes to a queue. Messages are told apart by their Type, a number.
type inbox struct {
	queue string

	mu     sync.Mutex
	order  []string          // types, as they came first
	idOf   map[string]string // message id by type
	again  int
	other  int       // messages that came twice with different ids
	latest time.Time // when the last one came
}

// newInbox makes a quorum queue on the shared broker and consumes it with the bare driver until the test ends.
func newInbox(t testing.TB) *inbox {
	t.Helper()
	return newInboxAt(t, testenv.Shared(t))
}

func newInboxAt(t testing.TB, b *testenv.Broker) *inbox {
	t.Helper()
	in := &inbox{queue: testenv.Name(t, "inbox"), idOf: map[string]string{}}
	ch, err := b.Dial(t).Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare(in.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	t.Cleanup(func() { b.DeleteQueue(t, in.queue) })
	in.consume(t, ch)
	return in
}

func (in *inbox) consume(t testing.TB, ch *amqp.Channel) {
	t.Helper()
	deliveries, err := ch.Consume(in.queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for d := range deliveries {
			in.take(d)
		}
	}()
	t.Cleanup(func() {
		_ = ch.Close()
		<-ended
	})
}

func (in *inbox) take(d amqp.Delivery) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.latest = time.Now()
	id, known := in.idOf[d.Type]
	switch {
	case !known:
		in.order, in.idOf[d.Type] = append(in.order, d.Type), d.MessageId
	case id == d.MessageId:
		in.again++
	default:
		in.other++
	}
}

// count returns how many different messages have come.
func (in *inbox) count() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.order)
}

// repeated returns how many came another time.
func (in *inbox) repeated() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.again
}

// firsts returns the types in the order in which they came first.
func (in *inbox) firsts() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]string(nil), in.order...)
}

// complete waits until messages 0 to n-1 have come, and checks that those which came again had their old ids.
func (in *inbox) complete(t testing.TB, n int) {
	t.Helper()
	testenv.Eventually(t, 3*patience, func() bool { return in.count() >= n }, "all %d messages have come", n)
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range n {
		if _, came := in.idOf[strconv.Itoa(i)]; !came {
			t.Fatalf("message %d has not come", i)
		}
	}
	require.Len(t, in.order, n)
	require.Zero(t, in.other, "messages that came twice under different ids")
}
