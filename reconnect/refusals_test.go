package reconnect

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the broker says, word for word.
var (
	noExchange  = &amqp.Error{Code: amqp.NotFound, Server: true, Reason: "NOT_FOUND - no exchange 'x' in vhost '/'"}
	noAccess    = &amqp.Error{Code: amqp.AccessRefused, Server: true, Reason: "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'u'"}
	noTopic     = &amqp.Error{Code: amqp.AccessRefused, Server: true, Reason: "ACCESS_REFUSED - write access to topic 'k' in exchange 'x' in vhost '/' refused for user 'u'"}
	tooLarge    = &amqp.Error{Code: amqp.PreconditionFailed, Server: true, Reason: "PRECONDITION_FAILED - message size 3000 is larger than configured max size 2000"}
	wrongUser   = &amqp.Error{Code: amqp.PreconditionFailed, Server: true, Reason: "PRECONDITION_FAILED - user_id property set to 'a' but authenticated user was 'b'"}
	unknownTag  = &amqp.Error{Code: amqp.PreconditionFailed, Server: true, Reason: "PRECONDITION_FAILED - unknown delivery tag 7"}
	forcedClose = &amqp.Error{Code: amqp.ConnectionForced, Server: true, Reason: "CONNECTION_FORCED - closed"}
)

func TestScopeOfARefusal(t *testing.T) {
	for _, tc := range []struct {
		err  *amqp.Error
		want scope
	}{
		{noExchange, scope{aboutExchange, "x", ""}},
		{noAccess, scope{aboutExchange, "x", ""}},
		{noTopic, scope{aboutKey, "x", "k"}},
		{tooLarge, scope{about: aboutSize}},
		{wrongUser, scope{aboutRoute, "x", "k"}},
	} {
		assert.Equal(t, tc.want, scopeOf("x", "k", tc.err), tc.err.Reason)
		assert.True(t, isMessageRefusal(tc.err))
	}
	assert.False(t, isMessageRefusal(unknownTag), "a publish has no delivery tag")
	assert.False(t, isMessageRefusal(forcedClose))
	assert.False(t, isMessageRefusal(nil))
}

func to(exchange, key string, size int) *Message {
	return &Message{Exchange: exchange, Key: key, Publishing: amqp.Publishing{Body: make([]byte, size)}}
}

// A refused name fails at once for a second, then one message is tried, and each new refusal doubles the time, to 30 s.
func TestRefusalsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.refuse("x", "k", 0, noExchange)
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			_, err := r.admit(t.Context(), to("x", "k", 0), true)
			require.Same(t, noExchange, err)
			time.Sleep(pause*time.Second - time.Nanosecond)
			_, err = r.admit(t.Context(), to("x", "other", 0), true)
			require.Same(t, noExchange, err)
			time.Sleep(time.Nanosecond)
			way, err := r.admit(t.Context(), to("x", "k", 0), true)
			require.NoError(t, err)
			require.True(t, way.aside)
			r.refuse("x", "k", 0, noExchange)
			r.end(way, false)
		}
		assert.True(t, r.none(to("y", "k", 0)), "another exchange is not concerned")
		assert.True(t, r.none(to("", "x", 0)))
	})
}

// While one message is tried the others wait for the outcome, unless they must not.
func TestRefusalsOneIsTried(t *testing.T) {
	for _, taken := range []bool{true, false} {
		t.Run(fmt.Sprintf("taken=%v", taken), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r refusals
				r.refuse("x", "k", 0, noAccess)
				time.Sleep(refusalPause)
				way, err := r.admit(t.Context(), to("x", "k", 0), true)
				require.NoError(t, err)
				_, err = r.admit(t.Context(), to("x", "k", 0), false)
				require.Same(t, noAccess, err)
				over, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = r.admit(over, to("x", "k", 0), true)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				other := make(chan error, 1)
				go func() {
					_, err := r.admit(t.Context(), to("x", "k", 0), true)
					other <- err
				}()
				synctest.Wait()
				if !taken {
					r.refuse("x", "k", 0, noAccess)
				}
				r.end(way, taken)
				if taken {
					require.NoError(t, <-other)
					assert.True(t, r.none(to("x", "k", 0)))
				} else {
					require.Same(t, noAccess, <-other)
				}
			})
		})
	}
}

func TestRefusalsOfASize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.refuse("x", "k", 3000, tooLarge)
		r.refuse("y", "k", 2500, tooLarge)
		assert.True(t, r.none(to("x", "k", 2499)))
		_, err := r.admit(t.Context(), to("z", "k", 2500), true)
		require.Same(t, tooLarge, err)
	})
}

func TestRefusalsOfATopic(t *testing.T) {
	var r refusals
	r.refuse("x", "k", 0, noTopic)
	assert.True(t, r.none(to("x", "other", 0)))
	assert.False(t, r.none(to("x", "k", 0)))
}

// A refusal that nothing explains does not fail others with that exchange and key; when it comes again soon, they go
// aside for a while.
func TestRefusalsUnexplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		aside := func() bool {
			way, err := r.admit(t.Context(), to("x", "k", 0), true)
			require.NoError(t, err)
			require.Nil(t, way.probe)
			return way.aside
		}
		r.refuse("x", "k", 0, wrongUser)
		require.False(t, aside())
		time.Sleep(strikesWithin + time.Second)
		require.False(t, aside())
		r.refuse("x", "k", 0, wrongUser)
		require.False(t, aside(), "too long ago")
		time.Sleep(time.Second)
		r.refuse("x", "k", 0, wrongUser)
		require.True(t, aside())
		time.Sleep(refusalPause)
		require.False(t, aside())
	})
}

// What the broker's words may be about is tried one by one at once.
func TestRefusalsSuspect(t *testing.T) {
	l := &loss{refusal: noExchange, suspects: []suspect{{exchange: "x"}, {exchange: "y"}, {exchange: "xx"}}}
	var r refusals
	r.suspect(l)
	assert.True(t, r.none(to("y", "", 0)))
	assert.True(t, r.none(to("xx", "", 0)))
	way, err := r.admit(t.Context(), to("x", "", 0), true)
	require.NoError(t, err)
	assert.True(t, way.aside)

	r = refusals{}
	r.suspect(&loss{refusal: tooLarge, suspects: []suspect{{size: 100}, {size: 3000}, {size: 2900}}})
	assert.True(t, r.none(to("", "q", 2999)))
	assert.False(t, r.none(to("", "q", 3000)), "the largest is one of the guilty, if it is about a size")
}

func TestRefusalsAreBounded(t *testing.T) {
	var r refusals
	for i := range 2 * maxRefusals {
		r.refuse(fmt.Sprint(i), "", 0, noExchange)
	}
	assert.Len(t, r.of, maxRefusals)
	assert.Len(t, r.order, maxRefusals)
	assert.True(t, r.none(to("0", "", 0)))
	assert.False(t, r.none(to(fmt.Sprint(2*maxRefusals-1), "", 0)))
}
