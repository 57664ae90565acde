package reconnect

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// cutAll has the broker close c's connections and waits until c has noticed.
func cutAll(t *testing.T, b *testenv.Broker, c *Conn) {
	t.Helper()
	var old []*session
	for _, l := range []*link{c.publishing, c.consuming} {
		if l.started() {
			s, err := l.session(within(t, 10*time.Second), false)
			require.NoError(t, err)
			old = append(old, s)
		}
	}
	enough := b.CutConnections(t, c.Config().Name+"/") >= len(old) // the broker may still list the last ones
	for _, s := range old {
		if !enough { // and lists a new one only a moment after it has opened it
			testenv.Eventually(t, 10*time.Second, func() bool {
				b.CutConnections(t, c.Config().Name+"/")
				return s.life.Err() != nil
			}, "cut off")
		}
		receive(t, s.lost(), 10*time.Second, "the loss is noticed")
	}
}

// restored waits until all links of c that are in use answer.
func restored(t *testing.T, c *Conn) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected again")
}

// furnished waits until all that is remembered was declared on the present session of l: the broker may free an exclusive
// queue only after the connection that had it, and the link then mends it.
func furnished(t *testing.T, c *Conn, l *link) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() bool {
		s, err := l.now()
		return err == nil && len(s.declared.lacking(c.registry.all())) == 0
	}, "all is declared")
}

// raw returns a channel of the bare driver.
func raw(t *testing.T, b *testenv.Broker) *amqp.Channel {
	t.Helper()
	ch, err := b.Dial(t).Channel()
	require.NoError(t, err)
	return ch
}

func TestDeclareInOrderAndAgain(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	e, alt, q, dlq := testenv.Name(t, "e"), testenv.Name(t, "alt"), testenv.Name(t, "q"), testenv.Name(t, "dlq")
	top := Topology{
		Exchanges: []Exchange{{Name: alt, Kind: "fanout"}, {Name: e, Kind: "topic", Alternate: alt}},
		Queues:    []Queue{{Name: dlq}, {Name: q, Type: "classic", Arguments: amqp.Table{"x-message-ttl": 5_000_000_000 / 2}}},
		Bindings:  []Binding{{Exchange: e, Key: "a.*", Queue: q}, {Exchange: e, Key: "b", ToExchange: alt}, {Exchange: alt, Queue: dlq}},
	}
	for range 2 {
		require.NoError(t, c.Declare(within(t, 10*time.Second), top))
	}
	info := b.Queue(t, q)
	require.Equal(t, "classic", info.Type)
	require.True(t, info.Durable)
	require.EqualValues(t, 2_500_000_000, info.Arguments["x-message-ttl"], "in 64 bits")
	require.Equal(t, "quorum", b.Queue(t, dlq).Type)

	ch := raw(t, b)
	for _, key := range []string{"a.x", "b", "c"} {
		require.NoError(t, ch.Publish(e, key, false, false, amqp.Publishing{}))
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return b.Queue(t, q).Ready == 1 && b.Queue(t, dlq).Ready == 2 }, "routed")

	moved := top
	moved.Bindings, moved.Obsolete = top.Bindings[1:], top.Bindings[:1]
	for range 2 {
		require.NoError(t, c.Declare(within(t, 10*time.Second), moved))
	}
	require.NoError(t, ch.Publish(e, "a.x", false, false, amqp.Publishing{}))
	testenv.Eventually(t, 5*time.Second, func() bool { return b.Queue(t, q).Ready == 1 && b.Queue(t, dlq).Ready == 3 }, "not bound any more")
	require.NotContains(t, names(c.registry.all()), top.Bindings[0].entity().name, "nor remembered")
}

// A7, the part of Declare.
func TestA7DeclareOtherArguments(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	q, other, e := testenv.Name(t, "q"), testenv.Name(t, "other"), testenv.Name(t, "e")
	_, err := raw(t, b).QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "classic", "x-message-ttl": 6000})
	require.NoError(t, err)
	require.NoError(t, raw(t, b).ExchangeDeclare(e, "direct", true, false, false, false, nil))
	before, err := c.publishing.now()
	require.NoError(t, err)

	began := time.Now()
	err = c.Declare(within(t, 10*time.Second), Topology{
		Exchanges: []Exchange{{Name: e, Kind: "fanout"}},
		Queues:    []Queue{{Name: q, Type: "classic", Arguments: amqp.Table{"x-message-ttl": 5000}}, {Name: other}},
	})
	took(t, began, time.Second, "the error about other arguments")
	require.True(t, isPermanent(err))
	for _, want := range []TopologyError{
		{Entity: fmt.Sprintf("exchange %q", e), Argument: "type", Wanted: "fanout", Existing: "direct"},
		{Entity: fmt.Sprintf("queue %q", q), Argument: "x-message-ttl", Wanted: "5000", Existing: "6000"},
	} {
		require.ErrorContains(t, err, fmt.Sprintf("%s: %s: wanted %s, existing %s", want.Entity, want.Argument, want.Wanted, want.Existing))
	}
	var refusal *amqp.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, amqp.PreconditionFailed, refusal.Code)
	require.True(t, b.Queue(t, other).Exists, "one failure does not stop the others")
	require.Equal(t, []string{other}, names(c.registry.all()), "what failed is not remembered")
	after, err := c.publishing.now()
	require.NoError(t, err)
	require.Same(t, before, after, "no connection was lost")

	err = c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: other, Type: "classic"}}})
	require.ErrorContains(t, err, "x-queue-type: wanted classic, existing quorum: described differently on this Conn already")
}

func TestDeclareWithoutTheRight(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	user := testenv.Name(t, "user")
	url := b.AddUser(t, user, testenv.Secret())
	b.SetPermissions(t, user, "^mine", ".*", ".*")
	c, _ := dialed(t, url, Config{})
	name := testenv.Name(t, "theirs")
	err := c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: name}}})
	var fault *TopologyError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, fmt.Sprintf("queue %q", name), fault.Entity)
	require.Equal(t, []string{"right", fmt.Sprintf("configure on queue '%s'", name), "none"}, []string{fault.Argument, fault.Wanted, fault.Existing})
	require.Equal(t, amqp.AccessRefused, amqpCode(err))
}

func TestDeclarePassive(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{Declare: Passive})
	q, e := testenv.Name(t, "q"), testenv.Name(t, "e")
	top := Topology{Exchanges: []Exchange{{Name: e, Kind: "x-whatever"}}, Queues: []Queue{{Name: q}}, Bindings: []Binding{{Exchange: e, Queue: q}}}
	err := c.Declare(within(t, 10*time.Second), top)
	require.Equal(t, amqp.NotFound, amqpCode(err))
	require.ErrorContains(t, err, fmt.Sprintf("exchange %q", e))
	require.ErrorContains(t, err, fmt.Sprintf("queue %q", q))
	require.False(t, isPermanent(err), "somebody may still make them")
	require.Empty(t, c.registry.all())

	ch := raw(t, b)
	_, err = ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-max-length": 1})
	require.NoError(t, err)
	require.NoError(t, ch.ExchangeDeclare(e, "fanout", true, false, false, false, nil))
	require.NoError(t, c.Declare(within(t, 10*time.Second), top), "as it is")
	require.Len(t, c.registry.all(), 2)
	require.NoError(t, ch.Publish(e, "", false, false, amqp.Publishing{}))
	require.Zero(t, b.Queue(t, q).Ready, "nothing was bound")
}

// An exchange of a kind that no plugin brings makes older brokers close the connection, so it is tried on another one.
func TestDeclareUnknownKindHarmsNoConnection(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	before, err := c.publishing.now()
	require.NoError(t, err)
	bad := Topology{Exchanges: []Exchange{{Name: testenv.Name(t, "e"), Kind: "x-nonsense"}}}
	for range 2 {
		var fault *TopologyError
		require.ErrorAs(t, c.Declare(within(t, 10*time.Second), bad), &fault)
		require.ErrorContains(t, fault, "unknown exchange type")
	}
	good := Topology{Exchanges: []Exchange{{Name: testenv.Name(t, "hash"), Kind: "x-consistent-hash"}}}
	for range 2 {
		require.NoError(t, c.Declare(within(t, 10*time.Second), good))
	}
	after, err := c.publishing.now()
	require.NoError(t, err)
	require.Same(t, before, after)
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.Connections(t, c.Config().Name)) == 1 }, "the other connections are closed")
}

// A declaration that does cost the connection costs it once: then it is tried apart, and its error is returned.
func TestDeclareThatCostsTheConnectionCostsOne(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, log := dialed(t, b.URL(), Config{})
	c.publishing.risks.kinds["x-nonsense"] = true // as after a downgrade of the broker
	q := testenv.Name(t, "q")
	err := c.Declare(within(t, 20*time.Second), Topology{Exchanges: []Exchange{{Name: testenv.Name(t, "e"), Kind: "x-nonsense"}}, Queues: []Queue{{Name: q}}})
	var fault *TopologyError
	require.ErrorAs(t, err, &fault)
	require.ErrorContains(t, fault, "unknown exchange type")
	require.True(t, b.Queue(t, q).Exists)
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
	if b.AtLeast(3, 14) {
		require.NotContains(t, log.String(), "connection lost", "only the channel")
	} else {
		require.Contains(t, log.String(), "connection lost")
	}
}

func TestExclusiveQueuesLiveOnTheConsumingLink(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	e, q := testenv.Name(t, "e"), testenv.Name(t, "mine")
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Exchanges: []Exchange{{Name: e, Kind: "fanout"}}}))
	require.False(t, c.consuming.started())
	top := Topology{Queues: []Queue{{Name: q, Exclusive: true}}, Bindings: []Binding{{Exchange: e, Queue: q}}}
	require.NoError(t, c.Declare(within(t, 10*time.Second), top))
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Bindings: []Binding{{Exchange: e, Key: "later", Queue: q}}}))
	require.True(t, b.Queue(t, q).Exclusive)
	pub := raw(t, b)
	for range 3 {
		cutAll(t, b, c)
		restored(t, c)
		furnished(t, c, c.consuming)
		require.NoError(t, pub.Publish(e, "", false, false, amqp.Publishing{}))
		testenv.Eventually(t, 5*time.Second, func() bool { return b.Queue(t, q).Ready == 1 }, "there and bound again")
		n, err := c.Inspect(within(t, 5*time.Second), q)
		require.NoError(t, err)
		require.Equal(t, 1, n.Messages)
	}
	s, err := c.publishing.now()
	require.NoError(t, err)
	require.Zero(t, s.declared.faults.Load(), "the publishing link leaves them alone")
	require.ErrorContains(t, c.SupervisePublishing(t.Context(), "w", top, func(context.Context, *amqp.Channel) error { return nil }),
		"exclusive queues belong on the consuming link")
}

func TestForgottenIsNotResurrected(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	kept, gone := testenv.Name(t, "kept"), testenv.Name(t, "gone")
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: kept}, {Name: gone}}}))
	c.Forget(Topology{Queues: []Queue{{Name: gone}}})
	for _, q := range []string{kept, gone} {
		b.DeleteQueue(t, q)
	}
	cutAll(t, b, c)
	restored(t, c)
	require.True(t, b.Queue(t, kept).Exists, "what is remembered is declared before the link is handed out")
	require.False(t, b.Queue(t, gone).Exists)
}

func TestDeclareThroughLosses(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	p := testenv.Proxy(t, b.URL())
	c, _ := dialed(t, p.URL(), Config{})
	q := testenv.Name(t, "q")
	p.Refuse()
	p.Cut()
	time.AfterFunc(300*time.Millisecond, p.Heal)
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: q}}}))
	require.True(t, b.Queue(t, q).Exists)
}

func TestDeclareConcurrently(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	common := testenv.Name(t, "common")
	var wg sync.WaitGroup
	var queues []string
	for range 20 {
		q := testenv.Name(t, "q")
		queues = append(queues, q)
		wg.Go(func() {
			if err := c.Declare(within(t, 20*time.Second), Topology{Queues: []Queue{{Name: common}, {Name: q}}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.ElementsMatch(t, append(queues, common), names(c.registry.all()))
}

// Two hundred entities are redeclared in a time that nobody notices.
func TestManyEntitiesComeBackFast(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	var top Topology
	e := testenv.Name(t, "e")
	top.Exchanges = []Exchange{{Name: e, Kind: "topic"}}
	for i := range 100 {
		q := testenv.Name(t, fmt.Sprint("q", i))
		top.Queues = append(top.Queues, Queue{Name: q, Exclusive: true})
		top.Bindings = append(top.Bindings, Binding{Exchange: e, Key: fmt.Sprint(i), Queue: q})
	}
	began := time.Now()
	require.NoError(t, c.Declare(within(t, 30*time.Second), top))
	making := time.Since(began)
	t.Logf("201 entities declared in %v", making)
	began = time.Now()
	cutAll(t, b, c)
	restored(t, c)
	furnished(t, c, c.consuming)
	took(t, began, max(2*time.Second, making), "coming back with 201 entities") // no longer than making them, where that takes long
}

func TestInspect(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	q := testenv.Name(t, "q")
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: q}}}))
	for range 3 {
		require.NoError(t, raw(t, b).Publish("", q, false, false, amqp.Publishing{}))
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		info, err := c.Inspect(within(t, 5*time.Second), q)
		return err == nil && info.Messages == 3 && info.Consumers == 0
	}, "three messages")
	_, err := c.Inspect(within(t, 5*time.Second), q+"x")
	require.Equal(t, amqp.NotFound, amqpCode(err))
	require.ErrorContains(t, err, "reconnect: inspect")
	_, err = c.Inspect(t.Context(), "")
	require.ErrorContains(t, err, "queue: empty")
}

// Whoever names what could not be declared is told so, asked anew after a while, and the link mends it by itself.
func TestWhatFailsHoldsBackOnlyThoseWhoNameIt(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{BackoffMin: 3 * time.Second, BackoffMax: 3 * time.Second})
	ch := raw(t, b)
	q, other := testenv.Name(t, "q"), testenv.Name(t, "other")
	declare := func() {
		_, err := ch.QueueDeclare(q, true, false, false, false, nil)
		require.NoError(t, err)
	}
	declare()
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: q, Declare: Passive}, {Name: other}}}))
	b.DeleteQueue(t, q)
	cutAll(t, b, c)
	s, err := c.publishing.session(within(t, 10*time.Second), false)
	require.NoError(t, err)
	require.NoError(t, s.declared.publishable(t.Context(), "", other))
	require.NoError(t, s.declared.publishable(t.Context(), q, ""), "an exchange of that name")
	require.Equal(t, amqp.NotFound, amqpCode(s.declared.publishable(t.Context(), "", q)))
	declare()
	verdict := s.declared.verdict(queueEntity(q))
	if err := s.declared.publishable(t.Context(), "", q); !verdict.stale() { // nor was it when it was asked for
		require.Equal(t, amqp.NotFound, amqpCode(err), "the verdict stands a second")
	}
	var wg sync.WaitGroup
	testenv.Eventually(t, 3*time.Second, func() bool { return s.declared.publishable(t.Context(), "", q) == nil }, "asked anew")
	for range 16 {
		wg.Go(func() {
			if err := s.declared.publishable(t.Context(), "", q); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestLinkMendsWhatMayPass(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, log := dialed(t, b.URL(), Config{})
	ch := raw(t, b)
	q := testenv.Name(t, "q")
	_, err := ch.QueueDeclare(q, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: q, Declare: Passive}}}))
	b.DeleteQueue(t, q)
	cutAll(t, b, c)
	restored(t, c)
	require.Contains(t, log.String(), "declaring on a new connection failed")
	s, err := c.publishing.now()
	require.NoError(t, err)
	require.EqualValues(t, 1, s.declared.faults.Load())
	_, err = ch.QueueDeclare(q, true, false, false, false, nil)
	require.NoError(t, err)
	testenv.Eventually(t, 5*time.Second, func() bool { return s.declared.faults.Load() == 0 }, "seen by itself")
}

// On a new connection one entity that the broker does not answer to holds back the others for a while only.
func TestRestoringIsBounded(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	s, err := c.publishing.now()
	require.NoError(t, err)
	q, before, after := testenv.Name(t, "q"), testenv.Name(t, "before"), testenv.Name(t, "after")
	items, err := Topology{Queues: []Queue{{Name: before}, {Name: q}, {Name: after}}}.items(Active)
	require.NoError(t, err)
	require.Empty(t, s.declared.all(within(t, 10*time.Second), []item{items[0], items[2]}), "to make them takes longer than to compare them")
	s.declared.risks.entities[queueEntity(q)] = true
	s.declared.apart = func(ctx context.Context, _ item) error {
		<-ctx.Done()
		return ctx.Err()
	}
	const limit = 3 * time.Second // a broker that lives may take a second
	faults := s.declared.restore(t.Context(), items, limit)
	require.Len(t, faults, 1)
	require.EqualError(t, faults[0], fmt.Sprintf("reconnect: queue %q: no answer from the broker within 3s", q))
	require.Equal(t, []item{items[1]}, s.declared.lacking(items))
	require.Equal(t, []item{items[1]}, s.declared.mendable(items), "it is asked for again")
	faults = s.declared.all(within(t, 50*time.Millisecond), items[1:2])
	require.Len(t, faults, 1)
	require.ErrorIs(t, faults[0], context.DeadlineExceeded, "a caller has the context's error")
}

// A caller who gives up while its channel is being opened leaves none behind.
func TestAbandonedChannelsAreClosed(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	_, err := c.consuming.session(within(t, 10*time.Second), false)
	require.NoError(t, err)
	got, tries := 0, 0
	for ; tries < 300 || got == 0 && tries < 3000; tries++ { // more where a channel takes longer than 30 ms
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(tries)*100*time.Microsecond)
		ch, err := c.Channel(ctx)
		cancel()
		if err == nil {
			got++
			require.NoError(t, ch.Close())
		}
	}
	t.Logf("%d of %d channels were opened in time", got, tries)
	require.Positive(t, got)
	require.Less(t, got, tries)
	testenv.Eventually(t, 10*time.Second, func() bool { return len(b.Channels(t, c.Config().Name)) == 0 }, "no channel is left")
}
