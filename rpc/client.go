package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// ClientConfig says how a Client calls. The zero value sends requests straight to queues, and waits up to 30 s.
type ClientConfig struct {
	// Exchange is where requests go, with the queue named in a call as their routing key. A call while it does not exist is
	// ErrNoServer. Default: the default exchange, so that a routing key is a queue's name.
	Exchange string

	// Timeout bounds a call whose context has no deadline. It cannot be switched off: a server that is slow and one that is
	// gone look the same. Default 30 s.
	Timeout time.Duration

	// Persistent has requests survive a restart of the broker, which nobody waits through but an idempotent call. It costs
	// a fifth of the rate. Default: transient.
	Persistent bool

	// NotifyCancel has the server told when a call's context is cancelled, so that the handler's context ends. It costs
	// two more messages a call, one of them from the server. A deadline ends the handler's context in any case.
	NotifyCancel bool
}

const defaultTimeout = 30 * time.Second

// Client makes calls. It is safe for any number of goroutines, which share two channels of the publishing link: one for calls
// to queues that may be full, one for the others, which is faster. They are opened by the first calls, again after each
// loss, and closed with the Client or its Conn.
type Client struct {
	core       *core
	idempotent bool
	headers    amqp.Table // not to be changed
}

// NewClient returns a Client. It does no I/O. It returns every fault of cfg at once, each naming its field.
func NewClient(conn *reconnect.Conn, cfg ClientConfig) (*Client, error) {
	if conn == nil {
		return nil, errors.New("rpc: client: conn: nil")
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("rpc: client: %w", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	return &Client{core: newCore(conn, cfg)}, nil
}

func (cfg ClientConfig) validate() error {
	faults := []error{wire.ShortString("Exchange", cfg.Exchange)}
	if cfg.Timeout < 0 {
		faults = append(faults, fmt.Errorf("Timeout: %v, must be positive, or 0 for %v", cfg.Timeout, defaultTimeout))
	}
	return errors.Join(faults...)
}

// Idempotent returns a Client on the same channels whose requests may be executed more than once: a call is sent again,
// with the same MessageId, when the link is lost under it, and a server takes one over from another that died. Each
// other rule of Call holds.
func (c *Client) Idempotent() *Client {
	return &Client{core: c.core, idempotent: true, headers: c.headers}
}

// WithHeaders returns a Client on the same channels whose requests carry h, beside the headers that c adds already; of two
// with one name the newer one holds, and one that the request has itself before both. h may be changed afterwards. Names
// that begin with "warren-" are the library's.
func (c *Client) WithHeaders(h amqp.Table) *Client {
	merged := make(amqp.Table, len(c.headers)+len(h))
	maps.Copy(merged, c.headers)
	maps.Copy(merged, h)
	return &Client{core: c.core, idempotent: c.idempotent, headers: merged}
}

// Pending returns how many calls wait for their answer.
func (c *Client) Pending() int { return int(c.core.pending.Load()) }

// Dropped returns how many replies have come that no call waited for: late ones, second ones, and what somebody else sent.
func (c *Client) Dropped() int64 { return c.core.dropped.Load() }

// Close ends the Client and all that were made from it: new calls return reconnect.ErrClosed, pending ones may be
// answered until ctx ends, or 30 s are over, and are then ended with reconnect.ErrUnknown and reconnect.ErrClosed. It may
// be called again. The Conn's Close does the same; a Client that lives as long as its Conn needs no Close.
func (c *Client) Close(ctx context.Context) error {
	if err := c.core.close(ctx); err != nil {
		return fmt.Errorf("rpc: client: close: %w", err)
	}
	return nil
}
