package rpc_test

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/rpc"
)

// Whoever may send a request chooses where its answer goes: only to itself, or where the server was told that it may.
func TestReplyToRules(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	allowed, foreign := testenv.Name(t, "answers"), testenv.Name(t, "victim")
	ch := s.rawChannel()
	for _, q := range []string{allowed, foreign} {
		_, err := ch.QueueDeclare(q, true, false, false, false, nil)
		require.NoError(t, err)
		t.Cleanup(func() { s.broker.DeleteQueue(t, q) })
	}
	var runs atomic.Int64
	server, _ := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		runs.Add(1)
		return echo(ctx, d)
	}, rpc.ServerConfig{ReplyTo: []string{"answers.", s.queue}})
	raw := s.rawClient()

	for i, to := range []string{foreign, s.queue, "nobody", "amq.rabbitmq.reply-to."} {
		raw.send(amqp.Publishing{ReplyTo: to, CorrelationId: "x", Body: []byte("bad")})
		testenv.Eventually(t, patience, func() bool { return server.Unanswered() == int64(i)+1 }, "%q is not answered", to)
	}
	require.NoError(t, raw.ch.Publish("", s.queue, true, false, amqp.Publishing{Body: []byte("none")}))
	testenv.Eventually(t, patience, func() bool { return server.Unanswered() == 5 }, "no reply-to")
	require.Zero(t, runs.Load(), "whom nobody can answer is not executed")

	raw.send(amqp.Publishing{ReplyTo: "answers.gone", CorrelationId: "x"})
	testenv.Eventually(t, patience, func() bool { return server.Unanswered() == 6 }, "a queue that is gone")
	raw.send(amqp.Publishing{ReplyTo: allowed, CorrelationId: "to the queue", Body: []byte("hello")})
	var answer amqp.Delivery
	testenv.Eventually(t, patience, func() (ok bool) {
		var err error
		answer, ok, err = ch.Get(allowed, true)
		require.NoError(t, err)
		return ok
	}, "an answer in an allowed queue")
	require.Equal(t, "to the queue", answer.CorrelationId)
	require.Equal(t, "hello", string(answer.Body))
	require.EqualValues(t, 2, runs.Load())
	info := s.broker.Queue(t, foreign)
	require.Zero(t, info.Ready, "nothing in the victim's queue")
	testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, s.queue); return q.Ready+q.Unacked == 0 }, "all are acknowledged")
}

// Forged addresses that look like direct reply-to must cost neither server nor client their connections.
func TestForgedDirectReplyAddresses(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	var runs atomic.Int64
	server, _ := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		if d.CorrelationId == "forged" {
			runs.Add(1)
		}
		return echo(ctx, d)
	}, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	s.answers(c, "before", "before")
	raw := s.rawClient()
	before := s.links(s.name)
	for _, to := range forgedAddresses(t, raw) {
		raw.send(amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to." + to, CorrelationId: "forged", Body: []byte("x")})
	}
	s.answers(c, "after", "after")
	testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, s.queue); return q.Ready+q.Unacked == 0 }, "all are acknowledged")
	s.answers(c, "later", "later")
	require.Equal(t, before, s.links(s.name))
	for _, state := range append(s.serverConn.State(), s.clientConn.State()...) {
		require.Zero(t, state.Attempts, "%+v", state)
	}
	require.Positive(t, server.Unanswered())
	require.Positive(t, runs.Load(), "some look right")
}

// forgedAddresses are addresses, without their prefix, that are no channel's.
func forgedAddresses(t *testing.T, raw *rawClient) []string {
	t.Helper()
	probe := testenv.Name(t, "probe")
	_, err := raw.ch.QueueDeclare(probe, true, false, false, false, nil)
	require.NoError(t, err)
	t.Cleanup(func() { raw.broker.DeleteQueue(t, probe) })
	require.NoError(t, raw.ch.Publish("", probe, true, false, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to"}))
	var d amqp.Delivery
	testenv.Eventually(t, patience, func() (ok bool) { d, ok, _ = raw.ch.Get(probe, true); return ok }, "an address")
	process, key, _ := strings.Cut(strings.TrimPrefix(d.ReplyTo, "amq.rabbitmq.reply-to."), ".")
	term, err := base64.StdEncoding.DecodeString(process)
	require.NoError(t, err)
	forged := []string{"x", ".", "..", "a.b", "a.b.c", "====", "g1h0.abc", "\x00\xff", "g2gDYQ.AAAA", "%s%n", strings.Repeat("A", 200),
		"g1h3AA5ub2RlQGxvY2FsaG9zdAAAAAAAAAAAAAAAAA==.AAAAAAAAAAAAAAAAAAAAAA==", "gwFQAAAAAQ==.a", "g1AAAAAJeJxLYmBgAAAAEAAE.x",
		process + ".", process + ".x", process + "." + key + "x", process + "=." + key, "x" + process + "." + key, process[:20] + "." + key}
	for i := range term { // every byte of it is not what it should be
		for _, b := range []byte{0, 1, term[i] + 1, 255} {
			other := slices.Clone(term)
			other[i] = b
			forged = append(forged, base64.StdEncoding.EncodeToString(other)+"."+key)
		}
		forged = append(forged, base64.StdEncoding.EncodeToString(term[:i])+"."+key, base64.StdEncoding.EncodeToString(slices.Insert(slices.Clone(term), i, '7'))+"."+key)
	}
	return forged
}
