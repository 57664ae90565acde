package acceptance

import (
	"context"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

func rpcRoles() []role {
	config := func(n, exchange string, mode reconnect.Declare) rpc.ServerConfig {
		cfg := rpc.ServerConfig{Declare: mode}
		if exchange != "" {
			cfg.Exchange, cfg.Keys = n+exchange, []string{key}
		}
		return cfg
	}
	call := func(c *cast, conn *reconnect.Conn, n, exchange string) error {
		to, cfg := n, rpc.ClientConfig{}
		if exchange != "" {
			to, cfg.Exchange = key, n+exchange
		}
		client, err := rpc.NewClient(conn, cfg)
		if err != nil {
			return err
		}
		defer client.Close(context.Background())
		_, err = client.Call(c.ctx, to, message)
		return err
	}
	// serve ends when the operator's call is answered, which is when the server has done all that it does.
	serve := func(exchange string, mode reconnect.Declare) func(*cast, string) error {
		return func(c *cast, n string) error {
			if err := c.operate(mode, config(n, exchange, 0).Topology(n)); err != nil {
				return err
			}
			s, err := rpc.NewServer(c.user, n, answer, config(n, exchange, mode))
			answered := make(chan struct{})
			return c.consume(s, err, answered, func() error {
				go func() {
					if call(c, c.operator, n, exchange) == nil {
						close(answered)
					}
				}()
				return nil
			})
		}
	}
	ask := func(exchange string) func(*cast, string) error {
		return func(c *cast, n string) error {
			s, err := rpc.NewServer(c.operator, n, answer, config(n, exchange, 0))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(c.ctx)
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			defer func() {
				cancel()
				<-ended
			}()
			select {
			case <-s.Ready():
			case <-ctx.Done():
				return fmt.Errorf("the operator: %w", ctx.Err())
			}
			return call(c, c.user, n, exchange)
		}
	}
	return []role{
		{"rpc/server", func(n string) []right {
			return slices.Concat(configure(n), write(defaultExchange), read(n))
		}, serve("", reconnect.Active)},
		{"rpc/server, passive", func(n string) []right { return append(write(defaultExchange), read(n)...) }, serve("", reconnect.Passive)},
		{"rpc/server with an exchange", func(n string) []right {
			return slices.Concat(configure(n, n+".x"), write(n, defaultExchange), read(n, n+".x"))
		}, serve(".x", reconnect.Active)},
		{"rpc/client", func(string) []right { return write(defaultExchange) }, ask("")},
		{"rpc/client with an exchange", func(n string) []right { return write(n + ".x") }, ask(".x")},
	}
}

func answer(_ context.Context, d amqp.Delivery) (amqp.Publishing, error) {
	return amqp.Publishing{Body: d.Body}, nil
}
