package rpc

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
)

// P36: ids are unique, in the order of time, and one does not follow from another.
func TestIDs(t *testing.T) {
	var s ids
	now := time.UnixMilli(1_700_000_000_123)
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen, parts := map[string]bool{}, map[string]bool{}
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				id := s.next(now)
				mu.Lock()
				seen[id], parts[id[randomPart:]] = true, true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 16_000)
	require.Len(t, parts, 16_000, "the part without the time, too")
	u := uuid.MustParse(s.next(now))
	require.EqualValues(t, 7, u.Version())
	require.Equal(t, uuid.RFC4122, u.Variant())
	sec, nsec := u.Time().UnixTime()
	require.Equal(t, now.UnixMilli(), time.Unix(sec, nsec).UnixMilli())
	require.Less(t, s.next(now), s.next(now.Add(time.Millisecond)))
	require.Equal(t, "7", u.String()[randomPart:randomPart+1])
}

// P40: whole milliseconds, rounded up, at least one, at most what brokers take.
func TestExpiration(t *testing.T) {
	var e expirations
	for left, want := range map[time.Duration]string{
		1: "1", time.Microsecond: "1", time.Millisecond: "1", time.Millisecond + 1: "2", 1500 * time.Microsecond: "2",
		10 * time.Second: "10000", 24 * time.Hour: "86400000", math.MaxInt64: "86400000", 25 * time.Hour: "86400000",
	} {
		for range 2 {
			require.Equal(t, want, e.of(left))
			require.Equal(t, want, expiration(left))
		}
	}
}

// What an address is, and what only looks like one. This one is of RabbitMQ 3.10.
const genuine = "amq.rabbitmq.reply-to.g1h2AA5yZXBseUA4MzgzNDk2NAAAAzYAAAAAawy7jA==.FP18Avz8xliAxyI2elqR9g=="

func TestAddress(t *testing.T) {
	a, ok := addressOf(genuine)
	require.True(t, ok)
	require.Equal(t, class{node: "reply@83834964"}, a.class)
	again, ok := addressOf(a.extreme())
	require.True(t, ok)
	require.Equal(t, a, again, "the most demanding of its class is in it")
	for _, id := range []struct{ id, serial uint32 }{{1<<15 - 1, 1<<13 - 1}, {1 << 15, 0}, {0, 1 << 13}, {math.MaxUint32, math.MaxUint32}, {1 << 27, 5}} {
		a := address{classOf("reply@1", id.id, id.serial), 7}
		again, ok := addressOf(a.extreme())
		require.True(t, ok)
		require.Equal(t, a, again)
	}
	process := strings.Split(genuine, ".")[3]
	for _, to := range []string{"", "queue", "amq.rabbitmq.reply-to", "amq.rabbitmq.reply-to.", "amq.rabbitmq.reply-to.x", genuine[1:],
		"amq.rabbitmq.reply-to." + process, "amq.rabbitmq.reply-to." + process + ".", "amq.rabbitmq.reply-to." + process + "=.x", "amq.rabbitmq.reply-to..x"} {
		_, ok := addressOf(to)
		require.False(t, ok, to)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add(genuine)
	f.Add("amq.rabbitmq.reply-to.g1h3BXJlcGx5.k")
	f.Fuzz(func(t *testing.T, to string) {
		a, ok := addressOf(to[:min(len(to), 255)])
		if !ok {
			return
		}
		require.True(t, strings.HasPrefix(a.node, "reply@"))
		again, ok := addressOf(a.extreme())
		require.True(t, ok)
		require.Equal(t, a, again)
	})
}

// A deadline that a request claims never goes beyond the server's own bound, and never overflows.
func FuzzDeadline(f *testing.F) {
	f.Add("1000", int64(0))
	f.Add("18446744073709551615", int64(math.MaxInt64))
	f.Add("", int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, expiration string, at int64) {
		s := &Server{cfg: ServerConfig{MaxDeadline: time.Minute}}
		now := time.UnixMilli(1_700_000_000_000)
		got := s.deadline(now, &amqp.Delivery{Expiration: expiration, Headers: amqp.Table{headerDeadline: at}})
		require.False(t, got.After(now.Add(time.Minute)))
		if at > now.UnixMilli() {
			require.False(t, got.Before(now))
		}
	})
}

// Calls go with confirmations until an answer says that the queue has no limit, then once a second, and for a minute after a refusal.
func TestRoutes(t *testing.T) {
	var r routes
	now := time.UnixMilli(1_700_000_000_000)
	plain := func(after time.Duration) bool { return r.plain("k", now.Add(after)) }
	require.False(t, plain(0))
	require.False(t, plain(0))
	r.answered("k", false, now)
	require.True(t, plain(1))
	require.True(t, plain(checkEvery-1))
	require.False(t, plain(checkEvery), "one of them")
	require.True(t, plain(checkEvery))
	require.False(t, r.plain("other", now))
	r.refused("k", now.Add(2*checkEvery))
	r.answered("k", false, now.Add(2*checkEvery))
	require.False(t, plain(2*checkEvery))
	require.False(t, plain(2*checkEvery+limitedFor-1))
	require.False(t, plain(2*checkEvery+limitedFor), "then again one of them first")
	require.True(t, plain(2*checkEvery+limitedFor))
	r.answered("k", true, now.Add(time.Hour))
	require.False(t, plain(time.Hour))

	for i := range maxRoutes + 10 {
		r.answered(string(rune('a'+i%26))+strings.Repeat("x", i/26), false, now)
	}
	require.LessOrEqual(t, r.count.Load(), int64(maxRoutes))
}

// Nothing is answered in the first moment after the broker was away; a link that was merely cut costs nothing.
func TestYoung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var y young
		settle := func() time.Duration {
			began := time.Now()
			y.settle(context.Background())
			return time.Since(began)
		}
		require.Zero(t, settle())
		leave := y.join()
		require.True(t, y.is())
		require.Zero(t, settle(), "the first time it is not known")
		time.Sleep(youngFor)
		require.False(t, y.is())
		leave()
		time.Sleep(awayFor / 2)
		leave = y.join()
		require.Zero(t, settle(), "cut")
		leave()
		time.Sleep(2 * awayFor)
		y.join()
		require.Equal(t, settling, settle(), "restarted")
		require.Zero(t, settle())
	})
}

// What comes back as an error is what was sent as one.
func TestErrorReplies(t *testing.T) {
	for _, e := range []*RemoteError{{Code: "c", Message: "m"}, {Code: "c", Details: []byte{0, 255}}, {Code: "\x00\"", Message: "line\n\x1b[31m"}} {
		msg := errorReply(e)
		require.Equal(t, e, replyError(&amqp.Delivery{Headers: msg.Headers, Body: msg.Body}))
		for _, r := range e.Error() {
			require.True(t, r >= ' ' && r <= '~', "%q on a terminal", e.Error())
		}
	}
	require.NoError(t, replyError(&amqp.Delivery{}))
	require.NoError(t, replyError(&amqp.Delivery{Headers: amqp.Table{headerKind: 7}}))
	require.ErrorIs(t, replyError(&amqp.Delivery{Headers: amqp.Table{headerKind: kindUnknown}}), reconnect.ErrUnknown)
	long := errorReply(&RemoteError{Code: strings.Repeat("c", 17<<20), Message: strings.Repeat("é", maxText)})
	require.Less(t, len(long.Body), maxCode+maxText+100, "it can always be sent")
	var remote *RemoteError
	require.ErrorAs(t, replyError(&amqp.Delivery{Headers: long.Headers, Body: long.Body}), &remote)
}

func FuzzReplyError(f *testing.F) {
	f.Add("error", []byte(`{"code":"c"}`))
	f.Add("unknown", []byte(nil))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		err := replyError(&amqp.Delivery{Headers: amqp.Table{headerKind: kind}, Body: body})
		var remote *RemoteError
		known := err == nil || errors.As(err, &remote) && remote.Code != "" || errors.Is(err, ErrBadReply) || errors.Is(err, reconnect.ErrUnknown)
		require.True(t, known, "%v", err)
		require.Equal(t, kind == "", err == nil)
	})
}
