package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// P39: nobody serves that queue, which is known at once.
func TestP39NoServerAtOnce(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	c := s.client(rpc.ClientConfig{})
	_, err := s.call(c, "x", patience)
	require.ErrorIs(t, err, rpc.ErrNoServer)
	began := time.Now()
	_, err = s.call(c, "x", patience)
	took(t, began, 200*time.Millisecond, "the error")
	require.ErrorIs(t, err, rpc.ErrNoServer)
	require.ErrorContains(t, err, fmt.Sprintf("rpc: call %q: no server: ", s.queue), "the package is named once")
	require.NotErrorIs(t, err, reconnect.ErrUnknown)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.Zero(t, c.Pending())
	s.serve(echo, rpc.ServerConfig{})
	s.answers(c, "now", "now")
}

var errStock = errors.New("out of stock")

// P39: a handler that fails, in whatever way, is an answer, and the server lives on.
func TestP39FailuresAreAnswers(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	server, _ := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		switch string(d.Body) {
		case "error":
			return amqp.Publishing{}, errors.New("it failed")
		case "coded":
			return amqp.Publishing{}, fmt.Errorf("in the shop: %w", errStock)
		case "own":
			return amqp.Publishing{}, fmt.Errorf("wrapped: %w", &rpc.RemoteError{Code: "teapot", Message: "short and stout", Details: []byte{0, 1, 2}})
		case "own without a code":
			return amqp.Publishing{}, &rpc.RemoteError{Message: "m"}
		case "panic":
			panic("at the disco")
		case "nil pointer":
			var p *amqp.Publishing
			return *p, nil
		case "goexit":
			runtime.Goexit()
		case "unsendable":
			return amqp.Publishing{Headers: amqp.Table{"n": math.NaN()}}, nil
		case "enormous":
			return amqp.Publishing{Body: make([]byte, 17<<20)}, nil
		case "enormous details":
			return amqp.Publishing{}, &rpc.RemoteError{Code: "big", Message: strings.Repeat("m", 1<<20), Details: make([]byte, 17<<20)}
		case "code panics":
			return amqp.Publishing{}, errCodePanics
		}
		return echo(ctx, d)
	}, rpc.ServerConfig{ErrorCode: func(err error) string {
		switch {
		case errors.Is(err, errStock):
			return "out-of-stock"
		case errors.Is(err, errCodePanics):
			panic("in ErrorCode")
		}
		return ""
	}})
	c := s.client(rpc.ClientConfig{})
	for _, tt := range []struct{ body, code, message string }{
		{"error", "error", "it failed"},
		{"coded", "out-of-stock", "in the shop: out of stock"},
		{"own", "teapot", "short and stout"},
		{"own without a code", "error", "m"},
		{"panic", "panic", "at the disco"},
		{"nil pointer", "panic", "nil pointer"},
		{"goexit", "panic", "goroutine"},
		{"unsendable", "error", "Headers"},
		{"enormous", "error", "Body"},
		{"enormous details", "big", "mmm"},
		{"code panics", "error", "no code"},
	} {
		t.Run(tt.body, func(t *testing.T) {
			_, err := s.call(c, tt.body, patience)
			var remote *rpc.RemoteError
			require.ErrorAs(t, err, &remote)
			require.Equal(t, tt.code, remote.Code)
			require.Contains(t, remote.Message, tt.message)
			require.NotErrorIs(t, err, reconnect.ErrUnknown)
			if tt.code == "teapot" {
				require.Equal(t, []byte{0, 1, 2}, remote.Details)
			}
			s.answers(c, "alive", "alive")
		})
	}
	testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, s.queue); return q.Ready+q.Unacked == 0 }, "nothing is left or comes again")
	require.Zero(t, server.Unanswered())
	require.Zero(t, c.Pending())
}

var errCodePanics = errors.New("no code")

// Requests that cannot be decoded are answered; answers that cannot be decoded are an error of their own.
func TestUndecodable(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	var runs sync.Map
	s.serve(rpc.JSON(func(_ context.Context, q quote) (any, error) {
		runs.Store(q.SKU, true)
		if q.SKU == "unencodable" {
			return func() {}, nil
		}
		return map[string]string{"Cents": "many"}, nil
	}), rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	for _, body := range []string{"", "null", " null ", "{}{}", "{\"SKU\":1}", "[", strings.Repeat("[", 20_000), "\x00"} {
		_, err := s.call(c, body, patience)
		var remote *rpc.RemoteError
		require.ErrorAs(t, err, &remote, "%.20q", body)
		require.Equal(t, "bad-request", remote.Code)
	}
	runs.Range(func(any, any) bool { t.Error("executed"); return false })

	_, err := rpc.Call[price](t.Context(), c, s.queue, quote{"a"})
	require.ErrorIs(t, err, rpc.ErrBadReply)
	_, err = rpc.Call[price](t.Context(), c, s.queue, func() {})
	require.Error(t, err)
	require.True(t, permanent(err), "%v", err)
	_, err = rpc.Call[price](t.Context(), c, s.queue, quote{"unencodable"})
	var remote *rpc.RemoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, "error", remote.Code)
}

// A server of another make answers with errors that are none.
func TestBadReplies(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.declare(rpc.ServerConfig{})
	ch := s.rawChannel()
	requests, err := ch.Consume(s.queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	go func() {
		for d := range requests {
			kind, body, _ := strings.Cut(string(d.Body), "|")
			_ = ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId, Body: []byte(body), Headers: amqp.Table{"warren-rpc": kind}})
		}
	}()
	c := s.client(rpc.ClientConfig{})
	for _, body := range []string{"error|", "error|null", "error|{}", "error|x", `error|{"code":1}`, `error|{"code":"","message":"m"}`, "what|", "cancellable|"} {
		_, err := s.call(c, body, patience)
		require.ErrorIs(t, err, rpc.ErrBadReply, body)
	}
	_, err = s.call(c, "unknown|", patience)
	require.ErrorIs(t, err, reconnect.ErrUnknown)
	s.answers(c, "|plain", "plain")
}

// Bad input is refused before a byte is sent, and harms no other call.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.serve(echo, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	s.open(c)
	for name, call := range map[string]func() error{
		"no queue":   func() error { _, err := c.Call(t.Context(), "", amqp.Publishing{}); return err },
		"long queue": func() error { _, err := c.Call(t.Context(), strings.Repeat("q", 256), amqp.Publishing{}); return err },
		"long id": func() error {
			_, err := c.Call(t.Context(), s.queue, amqp.Publishing{MessageId: strings.Repeat("q", 256)})
			return err
		},
		"large body": func() error {
			_, err := c.Call(t.Context(), s.queue, amqp.Publishing{Body: make([]byte, 17<<20)})
			return err
		},
		"header": func() error {
			_, err := c.WithHeaders(amqp.Table{"c": make(chan int)}).Call(t.Context(), s.queue, amqp.Publishing{})
			return err
		},
		"cancelled ctx": func() error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := c.Call(ctx, s.queue, amqp.Publishing{})
			return err
		},
		"deadline over": func() error {
			ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
			defer cancel()
			_, err := c.Call(ctx, s.queue, amqp.Publishing{})
			return err
		},
	} {
		err := call()
		require.Error(t, err, name)
		require.NotErrorIs(t, err, reconnect.ErrUnknown, name)
	}
	s.answers(c, "x", "x")
	require.Len(t, s.broker.Channels(t, s.clientName), 2)
	require.Zero(t, c.Pending())
}

func TestFaultsOfConfigurationsAreToldTogether(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	_, err := rpc.NewClient(s.clientConn, rpc.ClientConfig{Exchange: strings.Repeat("e", 256), Timeout: -1})
	require.ErrorContains(t, err, "Exchange: ")
	require.ErrorContains(t, err, "Timeout: ")
	_, err = rpc.NewClient(nil, rpc.ClientConfig{})
	require.ErrorContains(t, err, "conn: nil")
	_, err = rpc.NewServer(nil, "q", echo, rpc.ServerConfig{})
	require.ErrorContains(t, err, "conn: nil")
	_, err = rpc.NewServer(s.serverConn, "amq.x", rpc.JSON[int, int](nil), rpc.ServerConfig{Keys: []string{"k"}, Concurrency: -1, Prefetch: 70_000,
		MaxLength: -1, MaxDeadline: time.Microsecond, ShutdownTimeout: -2, ReplyTo: []string{""}, Declare: 9})
	for _, field := range []string{"queue", "h", "Keys", "Concurrency", "Prefetch", "MaxLength", "MaxDeadline", "ShutdownTimeout", "ReplyTo[0]", "Declare"} {
		require.ErrorContains(t, err, field+": ")
	}
	_, err = rpc.NewServer(s.serverConn, "q", echo, rpc.ServerConfig{Exchange: "e"})
	require.ErrorContains(t, err, "Keys: ")
	_, err = rpc.NewServer(s.serverConn, "", echo, rpc.ServerConfig{Prefetch: 100})
	require.ErrorContains(t, err, "queue: empty")
}

func permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}
