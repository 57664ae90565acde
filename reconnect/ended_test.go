package reconnect

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// What makes the broker end the connection each time is contained as a message is that cannot be read: the link is lost twice, and
// then only the connection of the function that does it.
func TestFunctionThatEndsTheConnectionIsContained(t *testing.T) {
	for name, tc := range map[string]struct {
		kind    string
		consume func(ch *amqp.Channel, queue string) (<-chan amqp.Delivery, error)
		code    int
	}{
		"global prefetch on a quorum queue": {"quorum", func(ch *amqp.Channel, queue string) (<-chan amqp.Delivery, error) {
			if err := ch.Qos(1, 0, true); err != nil {
				return nil, err
			}
			return ch.Consume(queue, "", false, false, false, false, nil)
		}, amqp.NotImplemented},
		"an internal error in the answer to basic.consume": {"stream", func(ch *amqp.Channel, queue string) (<-chan amqp.Delivery, error) {
			if err := ch.Qos(1, 0, false); err != nil {
				return nil, err
			}
			return ch.Consume(queue, "", false, false, false, false, amqp.Table{"x-stream-offset": true})
		}, amqp.InternalError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := testenv.Shared(t)
			c, log := dialed(t, broker.URL(), Config{})
			bad, good := testenv.Name(t, "bad"), testenv.Name(t, "good")
			for _, queue := range []string{bad, good} {
				t.Cleanup(func() { broker.DeleteQueue(t, queue) })
			}
			r := &reader{name: "good", queue: good, took: make(chan string, 10), topology: Topology{Queues: []Queue{{Name: good}}}}
			supervise(t, c, "good", r.topology, r.run)
			testenv.Eventually(t, 20*time.Second, func() bool { return phase(c, "good") == "running" }, "the good one runs")
			codes := make(chan int, 100)
			supervise(t, c, "bad", Topology{Queues: []Queue{{Name: bad, Type: tc.kind}}}, func(ctx context.Context, ch *amqp.Channel) error {
				_, err := tc.consume(ch, bad)
				var e *amqp.Error
				if errors.As(err, &e) {
					codes <- e.Code
				}
				return err
			})
			require.Equal(t, tc.code, receive(t, codes, 20*time.Second, "the broker's answer"))
			testenv.Eventually(t, 20*time.Second, func() bool {
				return strings.Contains(reasonOf(c, "bad"), `function "bad" makes the broker end the connection; apart`)
			}, "the state names it")
			testenv.Eventually(t, 20*time.Second, func() bool {
				return phase(c, "good") == "running" && reasonOf(c, "good") == "" && len(broker.Connections(t, c.Config().Name+"/consuming/apart")) <= 1
			}, "the good one is back on the link")
			runs := r.runs.Load()
			for range 4 {
				receive(t, codes, 20*time.Second, "it is tried again")
			}
			require.Equal(t, runs, r.runs.Load(), "which costs the good one nothing")
			require.Equal(t, 2, strings.Count(log.String(), `msg="connection lost" `+"connection="+c.Config().Name+" link=consuming error"), log)
			require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log)
			ch, err := broker.Dial(t).Channel()
			require.NoError(t, err)
			require.NoError(t, ch.Publish("", good, true, false, amqp.Publishing{Body: []byte("m")}))
			require.Equal(t, "m", receive(t, r.took, 20*time.Second, "a message of the good one"))
		})
	}
}

// What the broker says of credentials, of its own end, and what the driver says, is nobody's doing.
func TestEndedBy(t *testing.T) {
	t.Parallel()
	for want, causes := range map[bool][]error{
		true: {&amqp.Error{Code: amqp.InternalError, Server: true}, &amqp.Error{Code: amqp.NotImplemented, Server: true}, &amqp.Error{Code: amqp.SyntaxError, Server: true}},
		false: {&amqp.Error{Code: amqp.InternalError}, &amqp.Error{Code: amqp.NotAllowed, Server: true}, &amqp.Error{Code: amqp.ConnectionForced, Server: true},
			&amqp.Error{Code: amqp.FrameError}, amqp.ErrClosed, errBadFrame, nil},
	} {
		for _, cause := range causes {
			require.Equal(t, want, endedBy(cause), "%v", cause)
		}
	}
}
