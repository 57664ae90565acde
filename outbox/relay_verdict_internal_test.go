package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
)

type hopelessError struct{}

func (hopelessError) Error() string   { return "hopeless" }
func (hopelessError) Permanent() bool { return true }

type laterError time.Duration

func (laterError) Error() string               { return "later" }
func (e laterError) RetryAfter() time.Duration { return time.Duration(e) }

func TestJudgeOne(t *testing.T) {
	noExchange := &amqp.Error{Code: amqp.NotFound}
	unnamed := errors.New("nobody knows this one")
	for _, tt := range []struct {
		name        string
		err         error
		want, after verdict // after: behind an open one
	}{
		{"confirmed", nil, sent, sent},
		{"returned", &reconnect.ReturnedError{}, failed, failed},
		{"refused by a queue", fmt.Errorf("x: %w", reconnect.ErrRefused), failed, failed},
		{"refused by the broker", noExchange, failed, failed},
		{"permanent", fmt.Errorf("x: %w", hopelessError{}), hopeless, hopeless},
		{"later", laterError(time.Minute), failed, failed},
		{"unknown to the relay", unnamed, failed, open},
		{"outcome unknown", fmt.Errorf("%w: %w", reconnect.ErrUnknown, unnamed), open, open},
		{"outcome unknown, and refused when sent again", errors.Join(reconnect.ErrUnknown, noExchange), open, open},
		{"blocked", reconnect.ErrBlocked, open, open},
		{"busy", reconnect.ErrBusy, open, open},
		{"closed", reconnect.ErrClosed, open, open},
		{"canceled", context.Canceled, open, open},
		{"too late", fmt.Errorf("x: %w", context.DeadlineExceeded), open, open},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, judgeOne(tt.err, false))
			require.Equal(t, tt.after, judgeOne(tt.err, true))
		})
	}
}

func TestJudge(t *testing.T) {
	bad := errors.New("bad")
	verdicts, reasons := judge(3, nil)
	require.Equal(t, []verdict{sent, sent, sent}, verdicts)
	require.Equal(t, []error{nil, nil, nil}, reasons)

	verdicts, reasons = judge(4, fmt.Errorf("x: %w", reconnect.BatchError{bad, nil, reconnect.ErrUnknown, bad}))
	require.Equal(t, []verdict{failed, sent, open, open}, verdicts, "behind one in doubt nothing may have been sent")
	require.Equal(t, []error{bad, nil, reconnect.ErrUnknown, bad}, reasons)

	for _, err := range []error{bad, reconnect.BatchError{nil, nil}, hopelessError{}} {
		verdicts, _ = judge(3, err)
		require.Equal(t, []verdict{open, open, open}, verdicts, "nothing is known of any message: %v", err)
	}
}

func TestReasonOf(t *testing.T) {
	require.Equal(t, "a\uFFFDb", reasonOf(errors.New("a\xffb\x00")))
	long := reasonOf(errors.New(strings.Repeat("ü", 2000)))
	require.LessOrEqual(t, len(long), maxReason)
	require.True(t, utf8.ValidString(long))
	require.Equal(t, "x"+strings.Repeat("ü", 499), reasonOf(errors.New("x"+strings.Repeat("ü", 2000))))
}

func TestFailureIsParkedInTheEnd(t *testing.T) {
	r := &result{term: &term{lane: &lane{relay: &Relay{cfg: RelayConfig{MaxAttempts: 3}.withDefaults()}}}}
	o := new(outgoing)
	bad := errors.New("bad")
	r.fail(o, failed, bad)
	require.Len(t, r.failed, 1)
	require.LessOrEqual(t, r.failed[0].delay, time.Second)
	require.GreaterOrEqual(t, r.failed[0].delay, time.Second/2)
	r.fail(o, failed, laterError(time.Hour))
	require.Equal(t, time.Hour, r.failed[1].delay)
	r.fail(o, failed, bad)
	require.Len(t, r.parked, 1)
	require.Equal(t, 3, o.attempts)
	r.fail(new(outgoing), hopeless, bad)
	require.Len(t, r.parked, 2, "at once")

	r.term.relay.cfg.MaxAttempts = -1
	o.attempts = 1 << 20
	r.fail(o, failed, bad)
	require.Len(t, r.failed, 3, "never")
	require.LessOrEqual(t, r.failed[2].delay, 5*time.Minute)
}
