package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
)

// startTime bounds the start of the broker.
const startTime = 2 * time.Minute

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
	ctx, cancel := context.WithTimeout(ctx, startTime)
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
	out := spec{Path: c.path, URL: s.url, Queue: fmt.Sprintf("bench-%s-%d", s.name, s.queues), Classic: c.queue == classic,
		Callers: c.callers, Size: c.size, Prefetch: c.prefetch, Messages: c.messages, Busy: c.busy, For: s.time}
	if c.path == "subscribe" {
		out.Exchange = out.Queue + "-x"
	}
	switch c.link {
	case linkTLS:
		out.URL, out.CA = s.broker.TLSURL, s.ca
	case linkSlow:
		out.URL = s.slow.URL()
	}
	return out
}

// prepare makes the queue of a run with the messages that it finds.
func (s *stand) prepare(ctx context.Context, sp spec) error {
	declare := s.declare
	if sp.Exchange != "" {
		declare = s.subscribe
	}
	if err := declare(ctx, sp); err != nil || sp.Messages == 0 {
		return err
	}
	c, err := sp.rawChannel(s.conn)
	if err != nil {
		return err
	}
	// Some more, since a prefetch goes on for a moment.
	return errors.Join(c.batch(sp.Messages+sp.Messages/5), c.ch.Close())
}

func (s *stand) declare(_ context.Context, sp spec) error {
	args := amqp.Table{amqp.QueueTypeArg: quorum}
	if sp.Classic {
		args[amqp.QueueTypeArg] = classic
	}
	if sp.Path == "publish" || sp.Path == "batch" { // nobody consumes
		args["x-max-length"] = 1000
	}
	ch, err := s.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	_, err = ch.QueueDeclare(sp.Queue, true, false, false, false, args)
	return err
}

func (s *stand) subscribe(ctx context.Context, sp spec) error {
	conn, err := spec{URL: s.url}.dialOurs(ctx)
	if err != nil {
		return err
	}
	return errors.Join(conn.Declare(ctx, sp.subscription().Topology()), conn.Close(ctx))
}

// remove deletes what prepare has made of a run.
func (s *stand) remove(sp spec) error {
	ch, err := s.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	made := reconnect.Topology{Queues: []reconnect.Queue{{Name: sp.Queue}}}
	if sp.Exchange != "" {
		made = sp.subscription().Topology()
	}
	if sp.Path == "topology" { // not the run's to do, which may be ended at any time
		t := sp.entities()
		made.Queues, made.Exchanges = append(made.Queues, t.Queues...), t.Exchanges
	}
	return remove(ch, made)
}
