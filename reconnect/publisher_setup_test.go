package reconnect

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// pubTest is a Publisher on a broker, and a plain connection to look behind it.
type pubTest struct {
	t      *testing.T
	broker *testenv.Broker
	conn   *Conn
	p      *Publisher
	raw    *amqp.Channel
	good   atomic.Int64
}

func newPubTest(t *testing.T, cfg PublisherConfig) *pubTest {
	t.Helper()
	broker := testenv.Shared(t)
	return newPubTestAt(t, broker, broker.URL(), Config{}, cfg)
}

// newPubTestAt publishes by way of url, which leads to broker.
func newPubTestAt(t *testing.T, broker *testenv.Broker, url string, cfg Config, pub PublisherConfig) *pubTest {
	t.Helper()
	raw, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	conn, _ := dialed(t, url, cfg)
	p, err := conn.NewPublisher(pub)
	require.NoError(t, err)
	return &pubTest{t: t, broker: broker, conn: conn, p: p, raw: raw}
}

// queue declares a durable classic queue that is deleted when the test ends.
func (p *pubTest) queue(args amqp.Table) string {
	p.t.Helper()
	name := testenv.Name(p.t, "q")
	_, err := p.raw.QueueDeclare(name, true, false, false, false, args)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { p.broker.DeleteQueue(p.t, name) })
	return name
}

// exchange declares a durable direct exchange, with a queue bound to it under key, both deleted when the test ends.
func (p *pubTest) exchange(key string) (exchange, queue string) {
	p.t.Helper()
	exchange, queue = testenv.Name(p.t, "x"), p.queue(nil)
	require.NoError(p.t, p.raw.ExchangeDeclare(exchange, amqp.ExchangeDirect, true, false, false, false, nil))
	require.NoError(p.t, p.raw.QueueBind(queue, key, exchange, false, nil))
	p.t.Cleanup(func() {
		ch, err := p.broker.Dial(p.t).Channel()
		require.NoError(p.t, err)
		require.NoError(p.t, ch.ExchangeDelete(exchange, false, false))
	})
	return exchange, queue
}

// drain takes all messages out of the queue, in its order.
func (p *pubTest) drain(queue string) []amqp.Delivery {
	p.t.Helper()
	q, err := p.raw.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(p.t, err)
	deliveries, err := p.raw.Consume(queue, queue, true, false, false, false, nil)
	require.NoError(p.t, err)
	all := make([]amqp.Delivery, 0, q.Messages)
	for range q.Messages {
		all = append(all, receive(p.t, deliveries, 10*time.Second, "a message"))
	}
	require.NoError(p.t, p.raw.Cancel(queue, false))
	for d := range deliveries { // ends with the consumer; of a connection that was cut, the broker may still have had some to read
		all = append(all, d)
	}
	return all
}

// bodies takes all messages out of the queue and returns the number of each body.
func (p *pubTest) bodies(queue string) map[string]int {
	p.t.Helper()
	found := map[string]int{}
	for _, d := range p.drain(queue) {
		found[string(d.Body)]++
	}
	return found
}

// publish publishes one message, within a time that no test should need.
func (p *pubTest) publish(exchange, key, body string) error {
	p.t.Helper()
	return p.p.Publish(within(p.t, 20*time.Second), exchange, key, plainText(body))
}

// soon has publish succeed in the end. With a short ConfirmTimeout a message that nothing is wrong with is in doubt when the
// broker's disk takes that long.
func (p *pubTest) soon(publish func() error) {
	p.t.Helper()
	testenv.Eventually(p.t, 20*time.Second, func() bool {
		err := publish()
		if err != nil {
			require.ErrorIs(p.t, err, ErrUnknown)
		}
		return err == nil
	}, "confirmed")
}

func plainText(body string) amqp.Publishing { return amqp.Publishing{Body: []byte(body)} }

// concurrently calls f so many times at once and waits.
func concurrently(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// channels returns how many channels the broker sees on the connections of p.
func (p *pubTest) channels() int {
	p.t.Helper()
	return len(p.broker.Channels(p.t, p.conn.cfg.Name))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
