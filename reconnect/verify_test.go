package reconnect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// findings are the TopologyErrors in err, as "argument: wanted, existing"; without an argument the code.
func findings(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "%v", err)
	var out []string
	for _, e := range joined.Unwrap() {
		var fault *TopologyError
		require.ErrorAs(t, e, &fault)
		if fault.Argument == "" {
			out = append(out, fmt.Sprint(amqpCode(fault)))
			continue
		}
		out = append(out, fmt.Sprintf("%s: %s, %s", fault.Argument, fault.Wanted, fault.Existing))
	}
	return out
}

// Verify names every difference, not just the first one, and leaves everything as it is.
func TestVerify(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	ch := raw(t, b)
	quorum, classic, transient := testenv.Name(t, "quorum"), testenv.Name(t, "classic"), testenv.Name(t, "transient")
	alt, x := testenv.Name(t, "alt"), testenv.Name(t, "x")
	existing := Topology{
		Exchanges: []Exchange{{Name: alt, Kind: "fanout"}, {Name: x, Kind: "topic", Alternate: alt}},
		Queues: []Queue{
			{Name: quorum, Arguments: amqp.Table{"x-delivery-limit": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d", "x-max-length": 10, "x-overflow": "reject-publish"}},
			{Name: classic, Type: "classic", Arguments: amqp.Table{"x-max-priority": 3, "x-single-active-consumer": true}},
		},
		Bindings: []Binding{{Exchange: x, Key: "a", Queue: quorum}},
	}
	require.NoError(t, c.Declare(within(t, 10*time.Second), existing))
	_, err := ch.QueueDeclare(transient, true, true, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	require.NoError(t, c.Verify(within(t, 10*time.Second), existing))
	before := []testenv.QueueInfo{b.Queue(t, quorum), b.Queue(t, classic), b.Queue(t, transient)}

	q := func(name, kind string, args amqp.Table) Topology {
		return Topology{Queues: []Queue{{Name: name, Type: kind, Arguments: args}}}
	}
	e := func(e Exchange) Topology { return Topology{Exchanges: []Exchange{e}} }
	missing := testenv.Name(t, "missing")
	for name, want := range map[string]struct {
		t    Topology
		says []string // in any order
	}{
		"one argument": {q(quorum, "", amqp.Table{"x-delivery-limit": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d", "x-max-length": 10, "x-overflow": "reject-publish"}),
			[]string{"x-delivery-limit: 20, 5"}},
		"all of them": {q(quorum, "", amqp.Table{"x-delivery-limit": 20, "x-dead-letter-exchange": "dlx", "x-message-ttl": 60000}),
			[]string{"x-delivery-limit: 20, 5", "x-dead-letter-exchange: dlx, ", "x-dead-letter-routing-key: none, d", "x-max-length: none, 10",
				"x-overflow: none, reject-publish", "x-message-ttl: 60000, none"}},
		"another type": {q(classic, "quorum", amqp.Table{"x-single-active-consumer": false}),
			[]string{"x-queue-type: quorum, classic", "x-max-priority: none, 3", "x-single-active-consumer: false, true"}},
		"quorum wanted as classic": {q(quorum, "classic", amqp.Table{"x-max-length": 11}),
			[]string{"x-queue-type: classic, quorum", "x-delivery-limit: none, 5", "x-dead-letter-exchange: none, ", "x-dead-letter-routing-key: none, d",
				"x-max-length: 11, 10", "x-overflow: none, reject-publish"}},
		"auto-delete":      {q(transient, "classic", nil), []string{"auto_delete: false, true"}},
		"missing queue":    {q(missing, "", amqp.Table{"x-delivery-limit": 20}), []string{"404"}},
		"missing classic":  {q(missing, "classic", nil), []string{"404"}},
		"missing exchange": {e(Exchange{Name: missing, Kind: "topic"}), []string{"404"}},
		"missing plugin's": {e(Exchange{Name: missing, Kind: "x-nobody-has-it"}), []string{"404"}},
		"kind":             {e(Exchange{Name: x, Kind: "direct"}), []string{"type: direct, topic", "alternate-exchange: none, " + alt}},
		"alternate":        {e(Exchange{Name: x, Kind: "topic", Alternate: "other"}), []string{"alternate-exchange: other, " + alt}},
		"internal":         {e(Exchange{Name: alt, Kind: "fanout", Internal: true}), []string{"internal: true, false"}},
		"several": {Topology{Exchanges: []Exchange{{Name: x, Kind: "topic", Alternate: alt}, {Name: missing, Kind: "fanout"}},
			Queues: []Queue{{Name: missing}, {Name: classic, Type: "classic", Arguments: amqp.Table{"x-max-priority": 4, "x-single-active-consumer": true}}}},
			[]string{"404", "404", "x-max-priority: 4, 3"}},
		"skipped":               {Topology{Queues: []Queue{{Name: missing, Declare: Skip}}, Exchanges: []Exchange{{Name: missing, Declare: Skip}}}, nil},
		"exclusive":             {Topology{Queues: []Queue{{Name: missing, Exclusive: true}}}, nil},
		"passive, undescribed":  {Topology{Queues: []Queue{{Name: classic, Declare: Passive}}, Exchanges: []Exchange{{Name: x, Declare: Passive, Alternate: "other"}}}, nil},
		"passive, missing":      {Topology{Queues: []Queue{{Name: missing, Declare: Passive}}, Exchanges: []Exchange{{Name: missing, Declare: Passive}}}, []string{"404", "404"}},
		"passive, its argument": {Topology{Queues: []Queue{{Name: quorum, Declare: Passive, Arguments: amqp.Table{"x-delivery-limit": 20}}}}, []string{"x-delivery-limit: 20, 5"}},
		"passive, its type":     {Topology{Queues: []Queue{{Name: quorum, Type: "classic", Declare: Passive}}}, []string{"x-queue-type: classic, quorum"}},
		"passive, its kind":     {Topology{Exchanges: []Exchange{{Name: x, Kind: "fanout", Declare: Passive}}}, []string{"type: fanout, topic"}},
		"passive, of a plugin":  {Topology{Exchanges: []Exchange{{Name: alt, Kind: "fanout", Declare: Passive}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := findings(t, c.Verify(within(t, 20*time.Second), want.t))
			require.ElementsMatch(t, want.says, got)
		})
	}
	require.Equal(t, before, []testenv.QueueInfo{b.Queue(t, quorum), b.Queue(t, classic), b.Queue(t, transient)})
	require.False(t, b.Queue(t, missing).Exists)
	require.Equal(t, 404, amqpCode(raw(t, b).ExchangeDeclarePassive(missing, "direct", true, false, false, false, nil)))
	require.NoError(t, c.Ping(within(t, 10*time.Second)))
	for _, s := range c.State() {
		require.Zero(t, s.Attempts, "no connection was lost")
	}
	// What was verified is not remembered: a reconnect does not make it.
	cutAll(t, b, c)
	restored(t, c)
	require.False(t, b.Queue(t, missing).Exists)
}

// An exchange of a type that the broker does not know costs no connection that others use.
func TestVerifyOfAnUnknownKind(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	x := testenv.Name(t, "x")
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Exchanges: []Exchange{{Name: x, Kind: "direct"}}}))
	s, err := c.readingLink().session(within(t, 10*time.Second), false)
	require.NoError(t, err)
	for _, mode := range []Declare{Active, Passive} {
		err := c.Verify(within(t, 20*time.Second), Topology{Exchanges: []Exchange{{Name: x, Kind: "x-nobody-has-it", Declare: mode}}})
		var fault *TopologyError
		require.ErrorAs(t, err, &fault)
		require.Equal(t, fmt.Sprintf("exchange %q", x), fault.Entity)
		require.True(t, s.alive(), "the connection")
	}
}

// A text as in API.md, for a person to read.
func TestVerifyReads(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	name := testenv.Name(t, "q")
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: name, Arguments: amqp.Table{"x-delivery-limit": 5}}}}))
	c.Forget(Topology{Queues: []Queue{{Name: name}}})
	err := c.Verify(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: name, Arguments: amqp.Table{"x-delivery-limit": 20, "x-queue-mode": "lazy"}}}})
	require.ErrorContains(t, err, fmt.Sprintf("reconnect: queue %q: x-delivery-limit: wanted 20, existing 5", name))
	require.ErrorContains(t, err, fmt.Sprintf("reconnect: queue %q: x-queue-mode: wanted lazy: RabbitMQ refuses it on this type of queue", name))
	require.NotContains(t, err.Error(), "wanted lazy, existing")
}

// Who may only look learns what is missing, and that he may not compare what he would have to make.
func TestVerifyWithoutRights(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	owner, _ := dialed(t, b.URL(), Config{})
	name := testenv.Name(t, "q")
	top := Topology{Queues: []Queue{{Name: name, Arguments: amqp.Table{"x-delivery-limit": 5}}}}
	require.NoError(t, owner.Declare(within(t, 10*time.Second), top))
	user := testenv.Name(t, "user")
	url := b.AddUser(t, user, testenv.Secret())
	b.SetPermissions(t, user, "^$", ".*", ".*")
	c, _ := dialed(t, url, Config{})
	require.Equal(t, []string{fmt.Sprintf("right: configure on queue '%s', none", name)}, findings(t, c.Verify(within(t, 10*time.Second), top)))
	top.Queues[0].Declare, top.Queues[0].Arguments = Passive, amqp.Table{"x-delivery-limit": 20}
	require.NoError(t, c.Verify(within(t, 10*time.Second), top), "more is not his to know")
	top.Queues[0].Name = testenv.Name(t, "missing")
	require.Equal(t, []string{"404"}, findings(t, c.Verify(within(t, 10*time.Second), top)))
}

// The broker cuts its words off at 255 bytes, and says what it is told. What cannot be found out because of that is said.
func TestVerifyOfLongAndHostileWords(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	for name, tc := range map[string]struct {
		length int // of the queue's name
		value  string
		says   []string
		rest   bool // says that there may be more
	}{
		"long name":                     {200, "d", []string{": x-dead-letter-routing-key: wanted w, existing not told: "}, true},
		"long value":                    {0, strings.Repeat("d", 255), []string{": x-dead-letter-routing-key: wanted w, existing "}, true},
		"several lines":                 {0, "a\nb\x1b[2J", []string{`: x-dead-letter-routing-key: wanted w, existing "a\nb\x1b[2J": `, ": x-max-length: wanted none, existing 3: "}, false},
		"looks like the broker's words": {0, "x' of type 'long", []string{": x-dead-letter-routing-key: wanted w, existing x' of type 'long: ", ": x-max-length: wanted none, existing 3: "}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := testenv.Name(t, "q")
			q += strings.Repeat("q", max(0, tc.length-len(q)))
			t.Cleanup(func() { b.DeleteQueue(t, q) })
			_, err := raw(t, b).QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "quorum",
				"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": tc.value, "x-max-length": int64(3)})
			require.NoError(t, err)
			args := amqp.Table{"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "w"}
			if tc.rest { // which of two the broker names first is its affair
				args["x-max-length"] = 3
			}
			err = c.Verify(within(t, 20*time.Second), Topology{Queues: []Queue{{Name: q, Arguments: args}}})
			for _, says := range tc.says {
				require.ErrorContains(t, err, fmt.Sprintf("reconnect: queue %q%s", q, says))
			}
			require.Equal(t, tc.rest, errors.Is(err, errRest), "%v", err)
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
}

// What keeps it from asking is no finding about what it was to look at.
func TestVerifyThatCannotConnect(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	elsewhere, err := url.Parse(b.URL())
	require.NoError(t, err)
	elsewhere.Path = "/nowhere"
	cfg, _ := testConfig(t, Config{Lazy: true})
	c, err := Dial(t.Context(), elsewhere.String(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
	err = c.Verify(within(t, 3*time.Second), Topology{Queues: []Queue{{Name: "q"}}}) // time for one answer of a busy broker
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "530")
	var fault *TopologyError
	require.NotErrorAs(t, err, &fault)
}

// It waits through a loss of the link, and ends with its context; bad input is said before anything is asked.
func TestVerifyEnds(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	proxy := testenv.Proxy(t, b.URL())
	c, _ := dialed(t, proxy.URL(), Config{})
	top := Topology{Queues: []Queue{{Name: testenv.Name(t, "missing")}}}
	proxy.Refuse()
	proxy.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Verify(ctx, top), context.DeadlineExceeded)
	verified := make(chan error, 1)
	go func() { verified <- c.Verify(within(t, 20*time.Second), top) }()
	proxy.Heal()
	require.Equal(t, []string{"404"}, findings(t, receive(t, verified, 20*time.Second, "the answer")))

	err := c.Verify(within(t, 10*time.Second), Topology{Queues: []Queue{{Name: ""}}})
	require.ErrorContains(t, err, "Name: empty")
	require.NoError(t, c.Close(within(t, 10*time.Second)))
	require.ErrorIs(t, c.Verify(within(t, 10*time.Second), top), ErrClosed)
}

func TestLintFor43(t *testing.T) {
	t.Parallel()
	queue := func(kind string, args amqp.Table) Topology {
		return Topology{Queues: []Queue{{Name: "q", Type: kind, Arguments: args}}}
	}
	bind := func(kind string, keys ...string) Topology {
		top := Topology{Exchanges: []Exchange{{Name: "x", Kind: kind}}}
		for _, key := range keys {
			top.Bindings = append(top.Bindings, Binding{Exchange: "x", Key: key, Queue: "q"})
		}
		return top
	}
	passive := queue("classic", amqp.Table{"x-queue-mode": "lazy"})
	passive.Queues[0].Declare = Passive
	for name, c := range map[string]struct {
		t     Topology
		names []string // arguments, in order
	}{
		"nothing":            {queue("quorum", amqp.Table{"x-delivery-limit": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"}), nil},
		"lazy":               {queue("classic", amqp.Table{"x-queue-mode": "lazy"}), []string{"x-queue-mode"}},
		"version 1":          {queue("classic", amqp.Table{"x-queue-version": 1}), []string{"x-queue-version"}},
		"version 2":          {queue("classic", amqp.Table{"x-queue-version": 2}), nil},
		"priority on quorum": {queue("", amqp.Table{"x-max-priority": 3}), []string{"x-max-priority"}},
		"priority":           {queue("classic", amqp.Table{"x-max-priority": 3}), nil},
		"limit on classic":   {queue("classic", amqp.Table{"x-delivery-limit": 3, "x-dead-letter-strategy": "at-least-once"}), []string{"x-dead-letter-strategy", "x-delivery-limit"}},
		"limit as text":      {queue("", amqp.Table{"x-delivery-limit": "20"}), []string{"x-delivery-limit"}},
		"timeout on classic": {queue("classic", amqp.Table{"x-consumer-timeout": 60000}), []string{"x-consumer-timeout"}},
		"timeout on quorum":  {queue("", amqp.Table{"x-consumer-timeout": 60000}), nil},
		"delayed retry":      {queue("", amqp.Table{"x-delayed-retry-type": "all", "x-delayed-retry-min": 1000}), []string{"x-delayed-retry-type"}},
		"key without DLX":    {queue("", amqp.Table{"x-dead-letter-routing-key": "d"}), []string{"x-dead-letter-routing-key"}},
		"exclusive":          {Topology{Queues: []Queue{{Name: "q", Exclusive: true, Arguments: amqp.Table{"x-queue-mode": "lazy"}}}}, []string{"x-queue-mode"}},
		"passive":            {passive, nil},
		"topic":              {bind("topic", "#", "#.a.#", "a#.#.b#", "#.#.#", "a.#.#.b.#"), []string{"routing key", "routing key"}},
		"fanout":             {bind("fanout", "#.#.#"), nil},
		"weights":            {bind("x-consistent-hash", "1", "10000", "0", "-1", "", "x", "10001"), []string{"routing key", "routing key", "routing key", "routing key", "routing key"}},
		"delayed plugin":     {bind("x-delayed-message"), []string{"type"}},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, err := range c.t.lint(Active) {
				var fault *TopologyError
				require.ErrorAs(t, err, &fault)
				assert.True(t, isPermanent(err))
				names = append(names, fault.Argument)
			}
			require.Equal(t, c.names, names)
			if name != "exclusive" { // declared whatever the mode
				require.NoError(t, errors.Join(c.t.lint(Skip)...))
			}
		})
	}
	err := lint(queueEntity("q"), "x-queue-mode", "lazy", from43)
	require.EqualError(t, err, `reconnect: queue "q": x-queue-mode: wanted lazy: RabbitMQ refuses it from 4.3`)
}
