package reconnect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestExplainReadsTheBrokersWords(t *testing.T) {
	t.Parallel()
	queue := item{entity: queueEntity("q"), queue: &Queue{Name: "q"}}
	exchange := item{entity: exchangeEntity("e"), exchange: &Exchange{Name: "e"}}
	for name, tc := range map[string]struct {
		it                         item
		code                       int
		text                       string
		argument, wanted, existing string
		permanent                  bool
	}{
		"other value": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '5000' of type 'long' but current is the value '6000' of type 'signedint'",
			"x-message-ttl", "5000", "6000", true},
		"not there": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received none but current is the value '5' of type 'long'",
			"x-max-length", "none", "5", true},
		"only wanted": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '5' of type 'long' but current is none",
			"x-max-length", "5", "none", true},
		"a property": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'",
			"durable", "true", "false", true},
		"a name with quotes": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'it's q' in vhost '/': received 'true' but current is 'false'",
			"durable", "true", "false", true},
		"a value with words": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received the value 'a of type 'b' of type 'longstr' but current is the value 'but current is' of type 'longstr'",
			"x-dead-letter-exchange", "a of type 'b", "but current is", true},
		"an empty value": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received none but current is the value '' of type 'longstr'",
			"x-dead-letter-exchange", "none", "", true},
		"type of an exchange": {exchange, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received 'fanout' but current is 'topic'",
			"type", "fanout", "topic", true},
		"type of a plugin": {exchange, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received ''x-consistent-hash'' but current is 'direct'",
			"type", "x-consistent-hash", "direct", true},
		"lines": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received none but current is the value 'a\nb' of type 'longstr'",
			"x-dead-letter-exchange", "none", "a\nb", true},
		"no room for values": {queue, 406, "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'a name without an end...", "x-max-length", "none", "not told", true},
		"no room for the second": {exchange, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received 'fanout' but curr...",
			"type", "", "not told", true},
		"invalid": {queue, 406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'q' in vhost '/': \"expected integer, got longstr\"", "", "", "", true},
		"no right": {queue, 403, "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'guest'",
			"right", "configure on queue 'q'", "none", true},
		"no plugin":   {exchange, 503, "COMMAND_INVALID - unknown exchange type 'x-delayed'", "", "", "", true},
		"not allowed": {queue, 530, "NOT_ALLOWED - no", "", "", "", true},
		"no such":     {queue, 540, "NOT_IMPLEMENTED - no", "", "", "", true},
		"missing":     {queue, 404, "NOT_FOUND - no queue 'q' in vhost '/'", "", "", "", false},
		"locked":      {queue, 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'", "", "", "", false},
		"internal":    {queue, 541, "INTERNAL_ERROR", "", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cause := &amqp.Error{Code: tc.code, Reason: tc.text, Server: true}
			err := tc.it.explain(cause)
			require.Equal(t, tc.permanent, isPermanent(err))
			var reached *amqp.Error
			require.ErrorAs(t, err, &reached)
			require.Same(t, cause, reached)
			require.ErrorContains(t, err, tc.it.entity.String())
			var fault *TopologyError
			if !tc.permanent {
				require.NotErrorAs(t, err, &fault)
				return
			}
			require.ErrorAs(t, err, &fault)
			require.Equal(t, []string{tc.argument, tc.wanted, tc.existing}, []string{fault.Argument, fault.Wanted, fault.Existing})
		})
	}
}

func TestErrorTexts(t *testing.T) {
	t.Parallel()
	broker := &amqp.Error{Code: 406, Reason: "NO"}
	at := address{network: "127.0.0.1:1"}
	to := func(exchange, key, id string) *Message {
		return &Message{Exchange: exchange, Key: key, Publishing: amqp.Publishing{MessageId: id}}
	}
	for want, err := range map[string]error{
		`reconnect: queue "q": x-dead-letter-exchange: wanted none, existing "": ` + broker.Error():              &TopologyError{Entity: `queue "q"`, Argument: "x-dead-letter-exchange", Wanted: "none", Err: broker},
		`reconnect: publish to queue "k": message "m": returned, no queue took it: 312 NO_ROUTE`:                 &ReturnedError{Key: "k", MessageID: "m", Code: 312, Text: "NO_ROUTE"},
		`reconnect: publish to exchange "e": message "m": returned, no queue took it: 312 NO_ROUTE`:              &ReturnedError{Exchange: "e", MessageID: "m", Code: 312, Text: "NO_ROUTE"},
		`reconnect: publish to exchange "e" with key "k": message "m": returned, no queue took it: 312 NO_ROUTE`: &ReturnedError{Exchange: "e", Key: "k", MessageID: "m", Code: 312, Text: "NO_ROUTE"},
		`reconnect: queue "q": x-max-length: wanted 5, existing none: ` + broker.Error():                         &TopologyError{Entity: `queue "q"`, Argument: "x-max-length", Wanted: "5", Existing: "none", Err: broker},
		`reconnect: queue "q": ` + broker.Error():                                                                &TopologyError{Entity: `queue "q"`, Err: broker},
		`reconnect: queue "q"`:                      &TopologyError{Entity: `queue "q"`},
		"reconnect: no message of the batch failed": BatchError{nil, nil},
		"reconnect: 2 of 4 messages failed, the first of them number 1: refused by a queue":                                      BatchError{nil, ErrRefused, nil, ErrUnknown},
		`reconnect: 1 of 1 messages failed, the first of them number 0: publish to queue "k": message "m": outcome unknown; EOF`: BatchError{to("", "k", "m").fail(ErrUnknown, io.EOF)},
		`reconnect: publish to queue "k": outcome unknown; EOF`:                                                                  to("", "k", "").fail(ErrUnknown, io.EOF),
		`reconnect: publish to queue "": MessageId: too long`:                                                                    to("", "", "").fail(errors.New("MessageId: too long")),
		`reconnect: publish to exchange "e": message "m": ` + broker.Error():                                                     to("e", "", "m").notSent(context.Background(), nil, &history{}, broker),
		`reconnect: publish to exchange "e" with key "k": message "m": refused by a queue`:                                       to("e", "k", "m").fail(ErrRefused),
		`dial tcp 127.0.0.1:1: connection refused`:                                                                               dialFailed(at, &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, Err: errors.New("connection refused")}),
		`dial 127.0.0.1:1: handshake: EOF`:                                                                                       dialFailed(at, fmt.Errorf("handshake: %w", io.EOF)),
		`dial 127.0.0.1:1: write: broken pipe`:                                                                                   dialFailed(at, &net.OpError{Op: "write", Err: errors.New("broken pipe")}),
		`reconnect: queue "q": the broker blocks publishers (resource alarm): low on memory`:                                     item{entity: queueEntity("q")}.explain(blockedBy("low on memory")),
		"not connected":                   notConnected(nil, nil),
		"not connected: x":                notConnected(errors.New("x"), nil),
		"not connected: x; last error: y": notConnected(errors.New("x"), errors.New("y")),
	} {
		require.EqualError(t, err, want)
	}
}

func TestBatchErrorIsSearched(t *testing.T) {
	t.Parallel()
	var err error = BatchError{nil, fmt.Errorf("a: %w", ErrRefused), &ReturnedError{Key: "k"}, nil}
	require.ErrorIs(t, err, ErrRefused)
	require.NotErrorIs(t, err, ErrUnknown)
	var returned *ReturnedError
	require.ErrorAs(t, err, &returned)
	require.Equal(t, "k", returned.Key)
}

func TestPermanentIsFoundByBehaviour(t *testing.T) {
	t.Parallel()
	require.True(t, isPermanent(fmt.Errorf("x: %w", &TopologyError{})))
	require.True(t, isPermanent(errors.Join(errors.New("y"), &TopologyError{})))
	require.False(t, isPermanent(errors.New("y")))
	require.False(t, isPermanent(nil))
}

func TestHandshakeErrors(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	late, cancel := context.WithTimeout(ctx, 0)
	defer cancel()
	for name, tc := range map[string]struct {
		ctx     context.Context
		err     error
		took    time.Duration
		refusal bool
		text    string
	}{
		"wrong password":         {ctx, amqp.ErrCredentials, 3 * time.Second, true, "handshake: " + amqp.ErrCredentials.Error()},
		"socket lost":            {ctx, amqp.ErrCredentials, time.Second, false, "handshake: connection lost while authenticating"},
		"told by the broker":     {ctx, &amqp.Error{Code: 403, Server: true}, 0, true, `handshake: Exception (403) Reason: ""`},
		"lost while opening":     {ctx, amqp.ErrVhost, 0, false, "handshake: connection lost while opening the virtual host"},
		"virtual host refused":   {ctx, &amqp.Error{Code: 530, Server: true}, 0, true, `handshake: Exception (530) Reason: ""`},
		"no common mechanism":    {ctx, amqp.ErrSASL, 0, true, "handshake: " + amqp.ErrSASL.Error()},
		"time is over":           {late, amqp.ErrCredentials, 9 * time.Second, false, "handshake: context deadline exceeded"},
		"another kind of server": {ctx, &amqp.Error{Code: 501, Reason: "frame"}, 0, false, `handshake: Exception (501) Reason: "frame"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := handshakeError(tc.ctx, tc.err, tc.took)
			require.EqualError(t, err, tc.text)
			require.Equal(t, tc.refusal, isRefusal(err))
		})
	}
}

func TestEndedTellsTheCause(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrClosed)
	require.EqualError(t, ended(ctx), "context canceled: reconnect: closed")
	require.ErrorIs(t, ended(ctx), ErrClosed)
	require.ErrorIs(t, ended(ctx), context.Canceled)
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	require.EqualError(t, ended(ctx), "context canceled")
}

// What others have put into their queue's arguments is shown, and not obeyed by a terminal.
func TestHostileTextInATopologyError(t *testing.T) {
	t.Parallel()
	err := &TopologyError{Entity: `queue "q"`, Argument: "x-dead-letter-exchange", Wanted: "", Existing: "\x1b]0;title\a\x1b[2J"}
	require.Equal(t, `reconnect: queue "q": x-dead-letter-exchange: wanted "", existing "\x1b]0;title\a\x1b[2J"`, err.Error())
	require.Contains(t, (&TopologyError{Entity: "e", Argument: "a", Existing: "schön und gut"}).Error(), "existing schön und gut")
}

// What a person reads says once who speaks, and of what.
func TestErrorTextsOfCalls(t *testing.T) {
	t.Parallel()
	at := deadAddress(t)
	_, err := Dial(within(t, hiccup), "amqp://"+at, Config{})
	require.EqualError(t, err, "reconnect: not connected: context deadline exceeded; last error: dial tcp "+at+": connect: connection refused")

	c, err := Dial(t.Context(), "amqp://"+at, Config{Lazy: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
	p, err := c.NewPublisher(PublisherConfig{})
	require.NoError(t, err)
	msg := amqp.Publishing{MessageId: "m"}
	for call, run := range map[string]func(ctx context.Context) error{
		`publish to queue "q": message "m"`: func(ctx context.Context) error { return p.Publish(ctx, "", "q", msg) },
		`1 of 1 messages failed, the first of them number 0: publish to exchange "x": message "m"`: func(ctx context.Context) error {
			return p.PublishBatch(ctx, []Message{{Exchange: "x", Publishing: msg}})
		},
		`declare`:           func(ctx context.Context) error { return c.Declare(ctx, Topology{Queues: []Queue{{Name: "q"}}}) },
		`channel`:           func(ctx context.Context) error { _, err := c.Channel(ctx); return err },
		`inspect queue "q"`: func(ctx context.Context) error { _, err := c.Inspect(ctx, "q"); return err },
	} {
		text := run(within(t, 200*time.Millisecond)).Error()
		require.Regexp(t, `^`+regexp.QuoteMeta("reconnect: "+call+": not connected: context deadline exceeded")+
			`(; last error: `+regexp.QuoteMeta("dial tcp "+at+": connect: connection refused")+`)?$`, text)
	}
	require.Regexp(t, `^reconnect: (publishing|consuming) link: not connected: `, c.Ping(t.Context()).Error())
}
