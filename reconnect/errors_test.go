package reconnect

import (
	"context"
	"errors"
	"fmt"
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
	for want, err := range map[string]error{
		`reconnect: queue "q": x-dead-letter-exchange: wanted none, existing "": ` + broker.Error(): &TopologyError{Entity: `queue "q"`, Argument: "x-dead-letter-exchange", Wanted: "none", Err: broker},
		`reconnect: publish to exchange "e" with key "k": returned, no queue took it: 312 NO_ROUTE`: &ReturnedError{Exchange: "e", Key: "k", MessageID: "m", Code: 312, Text: "NO_ROUTE"},
		`reconnect: queue "q": x-max-length: wanted 5, existing none: ` + broker.Error():            &TopologyError{Entity: `queue "q"`, Argument: "x-max-length", Wanted: "5", Existing: "none", Err: broker},
		`reconnect: queue "q": ` + broker.Error():                                                   &TopologyError{Entity: `queue "q"`, Err: broker},
		`reconnect: queue "q"`:                      &TopologyError{Entity: `queue "q"`},
		"reconnect: no message of the batch failed": BatchError{nil, nil},
		"reconnect: 2 of 4 messages failed, the first of them number 1: reconnect: refused by a queue": BatchError{nil, ErrRefused, nil, ErrUnknown},
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
