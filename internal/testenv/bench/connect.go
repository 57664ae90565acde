package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// onRaw gives f a connection of the driver's own.
func onRaw(f func(context.Context, spec, *amqp.Connection) (figures, error)) runFunc {
	return func(ctx context.Context, s spec) (found figures, err error) {
		conn, err := s.dialRaw()
		if err != nil {
			return figures{}, err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		return f(ctx, s, conn)
	}
}

// onOurs gives f a connection of ours, with defaults.
func onOurs(f func(context.Context, spec, *reconnect.Conn) (figures, error)) runFunc {
	return func(ctx context.Context, s spec) (found figures, err error) {
		conn, err := s.dialOurs(ctx)
		if err != nil {
			return figures{}, err
		}
		defer func() { err = errors.Join(err, conn.Close(context.Background())) }()
		return f(ctx, s, conn)
	}
}

// proxied has what f dials go through a proxy, in this process, by which f can cut or freeze it.
func proxied(f runFunc) runFunc {
	return func(ctx context.Context, s spec) (figures, error) {
		proxy, err := testenv.NewProxy(s.URL)
		if err != nil {
			return figures{}, err
		}
		defer proxy.Close()
		s.proxy = proxy
		return f(ctx, s)
	}
}

func (s spec) dialRaw() (*amqp.Connection, error) {
	return amqp.DialConfig(s.address(), amqp.Config{TLSClientConfig: s.tls()})
}

func (s spec) dialOurs(ctx context.Context) (*reconnect.Conn, error) {
	return reconnect.Dial(ctx, s.address(), reconnect.Config{Name: "bench", TLS: s.tls(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

func (s spec) address() string {
	if s.proxy != nil {
		return s.proxy.URL()
	}
	return s.URL
}

func (s spec) tls() *tls.Config {
	if s.CA == "" {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(s.CA))
	return &tls.Config{RootCAs: pool}
}
