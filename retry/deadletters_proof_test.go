package retry_test

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
)

// A queue that may lose what is looked at is not touched, and the error says what is wrong with it.
func TestOnlySafeQueuesAreLookedInto(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	for name, tt := range map[string]struct {
		args   amqp.Table
		safe   bool
		reason string
	}{
		"as declared here":     {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}, true, ""},
		"a large limit":        {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(5000)}, true, ""},
		"classic":              {amqp.Table{"x-queue-type": "classic"}, true, ""},
		"a small limit":        {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(20)}, false, "x-delivery-limit: wanted 1000000, existing 20"},
		"no limit":             {amqp.Table{"x-queue-type": "quorum"}, false, "x-delivery-limit"},
		"a negative limit":     {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(-1)}, false, "x-delivery-limit: wanted 1000000, existing -1"},
		"a limit that is text": {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": "1000000"}, false, "x-delivery-limit"},
		"with a time to live":  {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000), "x-message-ttl": int64(600_000)}, false, "x-message-ttl"},
		"classic and bounded":  {amqp.Table{"x-queue-type": "classic", "x-max-length": int64(100)}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := broker.Dial(t)
			ch, err := conn.Channel()
			require.NoError(t, err)
			s := &dead{setup: &setup{t: t, broker: broker, url: broker.URL(), name: testenv.Name(t, "conn")}}
			s.queue.Name = testenv.Name(t, "jobs")
			s.conn = s.dial(s.name)
			dlq := s.queue.DeadLetterQueue()
			t.Cleanup(func() { broker.DeleteQueue(t, dlq) })
			_, err = ch.QueueDeclare(dlq, true, false, false, false, tt.args)
			require.NoError(t, err)
			s.letters, err = retry.NewDeadLetters(s.conn, s.queue.Name)
			require.NoError(t, err)
			s.bury(0, 40)
			if tt.safe {
				for _, far := range []int{40, 3, 40, 10, 40} {
					require.Equal(t, span(0, far), s.look(far))
				}
				return
			}
			refused := func(err error) {
				t.Helper()
				var differs *reconnect.TopologyError
				require.ErrorAs(t, err, &differs)
				require.ErrorContains(t, err, "nothing was taken")
				require.ErrorContains(t, err, tt.reason)
			}
			for range 3 {
				for _, err := range s.letters.All(s.within(patience)) {
					refused(err)
				}
				_, err = s.letters.Redrive(s.within(patience), retry.Selection{})
				refused(err)
				_, err = s.letters.Discard(s.within(patience), retry.Selection{})
				refused(err)
				_, err = s.letters.SkipUnreadable(s.within(patience), dlq)
				refused(err)
			}
			n, err := s.letters.Count(s.within(patience))
			require.NoError(t, err)
			require.Equal(t, 40, n)
			ds := s.take(dlq)
			require.Equal(t, span(0, 40), idsOf(ds))
			for _, d := range ds {
				require.False(t, d.Redelivered, "nobody has had it")
			}
		})
	}
}

// A user without the right to configure the queue cannot have its arguments compared.
func TestRightsOfTheTool(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	s.bury(0, 3)
	name, dlq := testenv.Name(t, "user"), s.queue.DeadLetterQueue()
	url := s.broker.AddUser(t, name, testenv.Secret())
	as := func(configure, write, read string) *retry.DeadLetters {
		s.broker.SetPermissions(t, name, configure, write, read)
		other := *s.setup
		other.url = url
		l, err := retry.NewDeadLetters(other.dial(testenv.Name(t, "conn")), s.queue.Name)
		require.NoError(t, err)
		return l
	}
	quote := func(s string) string { return "^" + strings.ReplaceAll(s, ".", "[.]") + "$" }
	_, err := as("^$", "^amq[.]default$", quote(dlq)).Redrive(s.within(patience), retry.Selection{})
	var refused *reconnect.TopologyError
	require.ErrorAs(t, err, &refused)
	_, err = as(quote(dlq), "^$", "^$").Redrive(s.within(patience), retry.Selection{})
	var broker *amqp.Error
	require.ErrorAs(t, err, &broker)
	require.Equal(t, amqp.AccessRefused, broker.Code)
	_, err = as(quote(dlq), "^$", quote(dlq)).Redrive(s.within(patience), retry.Selection{})
	require.ErrorAs(t, err, &broker)
	require.Equal(t, amqp.AccessRefused, broker.Code)
	s.await(3)
	n, err := as(quote(dlq), "^amq[.]default$", quote(dlq)).Redrive(s.within(patience), retry.Selection{})
	require.NoError(t, err)
	require.Equal(t, 3, n)
}

// A policy that lowers the limit is nothing that a client can see. It is noticed before any message is lost.
func TestPolicyThatLowersTheLimit(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s := &dead{setup: &setup{t: t, broker: broker, url: broker.URL(), name: testenv.Name(t, "conn")}}
	s.queue.Name = testenv.Name(t, "jobs")
	dlq := s.queue.DeadLetterQueue()
	uri, err := amqp.ParseURI(broker.URL())
	require.NoError(t, err)
	broker.Eval(t, nil, fmt.Sprintf(`ok = rabbit_policy:set(<<%q>>, <<%q>>, <<"^%s$">>, [{<<"delivery-limit">>, 4}], 0, <<"queues">>, <<"test">>), ok.`,
		uri.Vhost, dlq, dlq))
	t.Cleanup(func() {
		broker.Eval(t, nil, fmt.Sprintf(`rabbit_policy:delete(<<%q>>, <<%q>>, <<"test">>), ok.`, uri.Vhost, dlq))
	})
	s.conn = s.dial(s.name)
	require.NoError(t, s.conn.Declare(s.within(patience), s.queue.Topology()))
	t.Cleanup(func() { broker.DeleteQueue(t, s.queue.Name); broker.DeleteQueue(t, dlq) })
	s.letters, err = retry.NewDeadLetters(s.conn, s.queue.Name)
	require.NoError(t, err)
	const n = 20
	s.bury(0, n)
	none := retry.Selection{Where: func(retry.DeadLetter) bool { return false }}
	refusals := 0
	const looks = 7
	for round := range looks {
		var last error
		switch round % 3 {
		case 0, 1:
			for _, err := range s.letters.All(s.within(patience)) {
				if last = err; err == nil && round%3 == 1 {
					break
				}
			}
		case 2:
			_, last = s.letters.Discard(s.within(patience), none)
		}
		if last != nil {
			require.ErrorContains(t, last, "policy", "round %d", round)
			refusals++
		}
		s.await(n)
	}
	t.Logf("%d of %d looks were refused", refusals, looks)
	require.NotZero(t, refusals)
	moved, err := s.letters.Redrive(s.within(patience), retry.Selection{})
	require.NoError(t, err, "what is taken and does not come back is no matter")
	require.Equal(t, n, moved)
	require.ElementsMatch(t, span(0, n), idsOf(s.take(s.queue.Name)))
}
