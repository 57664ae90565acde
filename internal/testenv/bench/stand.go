package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/pubsub"
)

// runTime bounds a run's process, and the start of the broker.
const runTime = 2 * time.Minute

// delay is what a run over a slow link waits each way.
const delay = 5 * time.Millisecond

// stand is the broker with the links to it.
type stand struct {
	options
	provider *provide.Provider
	broker   *provide.RabbitMQ
	url      string
	name     string // of this run of the program, in the names of queues
	conn     *amqp.Connection
	ca       string // of its TLS listener
	slow     *testenv.FaultProxy
	queues   int
}

func newStand(ctx context.Context, o options) (_ *stand, err error) {
	s := &stand{options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	kind := provide.Kind(os.Getenv("WARREN_BROKER"))
	if kind == "" && os.Getenv("AMQP_URL") == "" {
		kind = provide.Local
	}
	if s.provider, err = provide.New(kind); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	if err = s.start(ctx); err != nil {
		return nil, err
	}
	s.url, s.name = s.broker.URL, rand.Text()[:8]
	if s.conn, err = amqp.Dial(s.url); err != nil {
		return nil, err
	}
	if !o.long {
		return s, nil
	}
	if s.slow, err = testenv.NewProxy(s.url); err == nil {
		s.slow.Delay(delay)
	}
	return s, err
}

// start has a broker with a TLS listener for the long form, where one can be made.
func (s *stand) start(ctx context.Context) (err error) {
	if !s.long || os.Getenv("AMQP_URL") != "" {
		s.broker, err = s.provider.RabbitMQ(ctx)
		return err
	}
	files, err := certificate()
	if err != nil {
		return err
	}
	s.ca = files.Certificate
	s.broker, err = s.provider.TLSNode(ctx, files)
	return err
}

// certificate is that of net/http's test server, which is for 127.0.0.1.
func certificate() (provide.TLSFiles, error) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return provide.TLSFiles{Authority: cert, Certificate: cert, Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))}, err
}

func (s *stand) close() (err error) {
	if s.conn != nil {
		err = s.conn.Close()
	}
	if s.slow != nil {
		s.slow.Close()
	}
	if s.broker != nil {
		err = errors.Join(err, s.broker.Remove())
	}
	if s.provider != nil {
		err = errors.Join(err, s.provider.Close())
	}
	return err
}

// spec is what both sides of a case are told.
func (s *stand) spec(c benchCase) spec {
	s.queues++
	out := spec{Path: c.path, URL: s.url, Queue: fmt.Sprintf("bench-%s-%d", s.name, s.queues), Classic: c.queue == amqp.QueueTypeClassic,
		Callers: c.callers, Size: c.size, Prefetch: c.prefetch, Messages: c.messages, Busy: c.busy, For: s.time}
	switch c.link {
	case linkTLS:
		out.URL, out.CA = s.broker.TLSURL, s.ca
	case linkSlow:
		out.URL = s.slow.URL()
	}
	return out
}

// prepare makes the queue of a run with the messages that it finds, and returns what deletes it.
func (s *stand) prepare(ctx context.Context, c benchCase, sp *spec) (remove func() error, err error) {
	ch, err := s.conn.Channel()
	if err != nil {
		return nil, err
	}
	defer ch.Close()
	if c.path == "subscribe" {
		sp.Exchange = sp.Queue + "-x"
		err = s.subscribe(ctx, *sp)
	} else {
		args := amqp.Table{amqp.QueueTypeArg: c.queue}
		if c.path == "publish" || c.path == "batch" {
			args["x-max-length"] = 1000
		}
		_, err = ch.QueueDeclare(sp.Queue, true, false, false, false, args)
	}
	if err == nil && c.messages > 0 {
		err = s.fill(*sp)
	}
	return func() error { return s.remove(*sp) }, err
}

// fill publishes what a consumer finds, and some more, since a prefetch goes on for a moment.
func (s *stand) fill(sp spec) error {
	sp.URL, sp.CA = s.url, ""
	c, closing, err := sp.rawChannel()
	if err != nil {
		return err
	}
	return errors.Join(c.batch(sp.Messages+sp.Messages/5), closing())
}

func (s *stand) subscribe(ctx context.Context, sp spec) error {
	sp.URL, sp.CA = s.url, ""
	conn, err := sp.dialOurs(ctx)
	if err != nil {
		return err
	}
	err = conn.Declare(ctx, pubsub.Subscription{Exchange: pubsub.Exchange{Name: sp.Exchange}, Queue: sp.Queue}.Topology())
	return errors.Join(err, conn.Close(ctx))
}

func (s *stand) remove(sp spec) error {
	ch, err := s.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	for _, queue := range []string{sp.Queue, sp.Queue + ".dlq"} {
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			return err
		}
	}
	if sp.Exchange == "" {
		return nil
	}
	return ch.ExchangeDelete(sp.Exchange, false, false)
}

// process is a run in a process of its own.
func process(ctx context.Context, s spec) (f figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	cmd, err := command(ctx, s)
	if err != nil {
		return f, err
	}
	said, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return f, fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err == nil {
		err = json.Unmarshal(said, &f)
	}
	return f, err
}

func command(ctx context.Context, s spec) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	told, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, childArg)
	cmd.Stdin = strings.NewReader(string(told))
	return cmd, nil
}

// server runs serve until the returned function is called.
func server(ctx context.Context, s spec) (stop func() error, err error) {
	s.Side, s.Path, s.Profile, s.Busy = raw, "serve", "", 0
	cmd, err := command(ctx, s)
	if err != nil {
		return nil, err
	}
	told := cmd.Stdin
	cmd.Stdin = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	buffer := new(bytes.Buffer)
	_, _ = buffer.ReadFrom(told)
	_, err = in.Write(buffer.Bytes())
	return func() error { return errors.Join(in.Close(), cmd.Wait()) }, err
}
