package reconnect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// guilt is a caller in a tight loop whose messages the broker refuses by closing the channel.
type guilt struct {
	name string
	code int
	// start prepares p and returns what the guilty caller sends.
	start func(t *testing.T, p *pubTest) Message
	at    func(t *testing.T) (*testenv.Broker, string) // nil: the shared broker
}

func guilts() []guilt {
	return []guilt{
		{name: "missing exchange", code: amqp.NotFound, start: func(t *testing.T, p *pubTest) Message {
			return Message{Exchange: testenv.Name(t, "missing")}
		}},
		{name: "deleted exchange", code: amqp.NotFound, start: func(t *testing.T, p *pubTest) Message {
			name := testenv.Name(t, "deleted")
			require.NoError(t, p.raw.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
			require.ErrorAs(t, p.publish(name, "", "seen"), new(*ReturnedError))
			require.NoError(t, p.raw.ExchangeDelete(name, false, false))
			return Message{Exchange: name}
		}},
		{name: "forbidden exchange", code: amqp.AccessRefused, at: restrictedUser, start: func(t *testing.T, p *pubTest) Message {
			return Message{Exchange: "amq.topic", Key: "k"}
		}},
		{name: "oversized body", code: amqp.PreconditionFailed, at: smallMessages, start: func(t *testing.T, p *pubTest) Message {
			return Message{Key: "k", Publishing: amqp.Publishing{Body: make([]byte, 3000)}}
		}},
		{name: "foreign UserId", start: func(t *testing.T, p *pubTest) Message {
			return Message{Key: "k", Publishing: amqp.Publishing{UserId: "somebody else"}}
		}},
	}
}

// restrictedUser may publish to the default exchange and to nothing else.
func restrictedUser(t *testing.T) (*testenv.Broker, string) {
	broker := testenv.Shared(t)
	user := testenv.Name(t, "user")
	url := broker.AddUser(t, user, testenv.Secret())
	broker.SetPermissions(t, user, "^$", "^amq\\.default$", "^$")
	return broker, url
}

// smallMessages is a node that takes bodies of 2,000 bytes.
func smallMessages(t *testing.T) (*testenv.Broker, string) {
	node := testenv.Node(t)
	node.MaxMessageSize(2000)
	return node.Broker, node.URL()
}

// One guilty caller beside sixteen good ones: it fails with the broker's own error, they keep most of their rate, and few
// channels are lost. make chaos gives it 10 s and asks for 0.7 of the rate; in the suite, a second on a busy machine, half is
// what counts as even.
func TestChaosGuiltyCallerFailsAlone(t *testing.T) {
	for _, g := range guilts() {
		t.Run(g.name, func(t *testing.T) {
			at := g.at
			if at == nil {
				at = func(t *testing.T) (*testenv.Broker, string) { b := testenv.Shared(t); return b, b.URL() }
			}
			broker, url := at(t)
			var closes closeCounter
			p := newPubTestAt(t, broker, url, Config{DialContext: closes.dial}, PublisherConfig{})
			queue := p.queue(nil)
			require.NoError(t, p.publish("", queue, "warm"))
			length, rate := 1200*time.Millisecond, 0.5
			if inChaos() {
				length, rate = 10*time.Second, 0.7
			}
			alone := func(when string) float64 { return p.goodCallers(queue, when, length/2, func(context.Context) {}) }
			undisturbed := alone("before")
			msg := g.start(t, p)
			before := closes.n.Load()
			var failures atomic.Int64
			var kept float64
			// What else the machine does changes all the time: what is the guilty caller's doing is there in each round.
			for round := 0; round < 4 && kept <= rate; round++ {
				disturbed := p.goodCallers(queue, fmt.Sprint("beside ", round), length, func(ctx context.Context) {
					for ctx.Err() == nil {
						err := p.p.Publish(t.Context(), msg.Exchange, msg.Key, msg.Publishing)
						failures.Add(1)
						require.NotErrorIs(t, err, ErrUnknown)
						if g.code == 0 {
							require.True(t, isPermanent(err))
							continue
						}
						var refusal *amqp.Error
						require.ErrorAs(t, err, &refusal)
						require.Equal(t, g.code, refusal.Code)
					}
				})
				after := alone(fmt.Sprint("after ", round))
				kept = disturbed / min(undisturbed, after)
				t.Logf("rate %.2f of undisturbed (%.0f/s and %.0f/s)", kept, undisturbed, after)
				undisturbed = after
			}
			got, duplicates := p.bodies(queue), 0
			for body, n := range got {
				require.NotEmpty(t, body)
				duplicates += n - 1
			}
			lost := closes.n.Load() - before
			t.Logf("%d failures, %d channels lost, %d duplicates", failures.Load(), lost, duplicates)
			assert.Len(t, got, int(p.good.Load())+1, "each good message arrived")
			assert.LessOrEqual(t, lost, int64(6))
			assert.LessOrEqual(t, duplicates, 6*defaultWindow)
			assert.Greater(t, kept, rate)
		})
	}
}

// goodCallers publishes from 16 callers beside disturb and returns their rate.
func (p *pubTest) goodCallers(queue, name string, d time.Duration, disturb func(ctx context.Context)) float64 {
	ctx, cancel := context.WithTimeout(p.t.Context(), d)
	defer cancel()
	began, before := time.Now(), p.good.Load()
	calls := within(p.t, time.Minute)
	var wg sync.WaitGroup
	wg.Go(func() { disturb(ctx) })
	for i := range 16 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if assert.NoError(p.t, p.p.Publish(calls, "", queue, plainText(fmt.Sprintf("%s/%d/%d", name, i, n)))) {
					p.good.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return float64(p.good.Load()-before) / time.Since(began).Seconds()
}

// Several callers publish to an exchange that is deleted under them, others elsewhere.
func TestP19ExchangeDeletedUnderManyCallers(t *testing.T) {
	t.Parallel()
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	name := testenv.Name(t, "deleted")
	declare := func() {
		require.NoError(t, p.raw.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
		require.NoError(t, p.raw.QueueBind(queue, "", name, false, nil))
	}
	declare()
	var deleted atomic.Bool
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var failures atomic.Int64
	bad := func() {
		for ctx.Err() == nil {
			err := p.publish(name, "", "a")
			if err != nil {
				assert.True(t, deleted.Load(), "%v", err)
				if errors.As(err, new(*ReturnedError)) { // the broker deletes an exchange's bindings and the exchange one after the other
					continue
				}
				assert.Equal(t, amqp.NotFound, amqpCode(err), "%v", err)
				failures.Add(1)
			}
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(bad)
		wg.Go(func() {
			for ctx.Err() == nil {
				assert.NoError(t, p.publish("", queue, "b"))
			}
		})
	}
	wg.Go(func() {
		<-time.After(300 * time.Millisecond)
		deleted.Store(true)
		assert.NoError(t, p.raw.ExchangeDelete(name, false, false))
	})
	wg.Wait()
	assert.Positive(t, failures.Load())
	declare()
	testenv.Eventually(t, 10*time.Second, func() bool { return p.publish(name, "", "again") == nil }, "it is tried again, and works")
}

// A name that was missing works at once when this Conn itself has declared the exchange.
func TestRefusedNameWorksOnceDeclared(t *testing.T) {
	p := newPubTest(t, PublisherConfig{AllowUnroutable: true})
	name := testenv.Name(t, "late")
	for range 3 { // the pause grows
		require.Error(t, p.publish(name, "", "too early"))
	}
	t.Cleanup(func() { require.NoError(t, p.raw.ExchangeDelete(name, false, false)) })
	require.NoError(t, p.conn.Declare(t.Context(), Topology{Exchanges: []Exchange{{Name: name, Kind: "fanout"}}}))
	require.NoError(t, p.publish(name, "", "now"))
}

// A fail-fast publisher sends nothing twice, so its message in doubt stays in doubt; what is refused is found out all the
// same.
func TestGuiltyWithFailFast(t *testing.T) {
	t.Parallel()
	p := newPubTest(t, PublisherConfig{FailFast: true})
	queue := p.queue(nil)
	name := testenv.Name(t, "deleted")
	require.NoError(t, p.raw.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
	require.ErrorAs(t, p.publish(name, "", "seen"), new(*ReturnedError))
	require.NoError(t, p.raw.ExchangeDelete(name, false, false))
	var clear, doubt atomic.Int64
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	concurrently(8, func(i int) {
		for ctx.Err() == nil || i == 0 && clear.Load() == 0 && time.Since(began) < 20*time.Second { // the first is in doubt, and may take long
			if i > 0 {
				if err := p.publish("", queue, "good"); err != nil {
					assert.ErrorIs(t, err, ErrUnknown)
					assert.False(t, isPermanent(err))
					doubt.Add(1)
				}
				continue
			}
			var refusal *amqp.Error
			err := p.publish(name, "", "bad")
			assert.ErrorAs(t, err, &refusal)
			if !errors.Is(err, ErrUnknown) {
				clear.Add(1)
			}
		}
	})
	assert.Positive(t, clear.Load())
	assert.LessOrEqual(t, doubt.Load(), int64(3*8), "few were in flight when a channel was lost")
}

// A message that was refused is not refused for ever.
func TestRefusedNameWorksAgain(t *testing.T) {
	t.Parallel()
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	name := testenv.Name(t, "late")
	require.Error(t, p.publish(name, "", "too early"))
	require.NoError(t, p.raw.ExchangeDeclare(name, "fanout", true, true, false, false, nil))
	require.NoError(t, p.raw.QueueBind(queue, "", name, false, nil))
	began := time.Now()
	concurrently(8, func(i int) {
		testenv.Eventually(t, 10*time.Second, func() bool { return p.publish(name, "", fmt.Sprint(i)) == nil }, "it works")
	})
	took(t, began, refusalPause, "the next try")
	assert.Len(t, p.bodies(queue), 8)
	assert.True(t, p.conn.exchanges.knows(name))
}
