package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/warrenmq/warren/internal/migrate"
)

// Handler handles one message, as the consumers of every package take it.
type Handler = func(ctx context.Context, d amqp.Delivery) error

// Config says where an Inbox keeps its keys, and for how long. The zero value is complete and safe. Every program with the
// same consumer uses the same Schema, Table, Key and UUIDKeys.
type Config struct {
	// Schema is the database schema of the tables. Default: none, the tables are found by the search_path of each session,
	// which must then be the same for all.
	Schema string

	// Table is the name of the table of keys and the beginning of the names of the others; at most 56 bytes, any text. Any
	// number of consumers share one. Default "inbox".
	Table string

	// Key returns the key of a message, 1 to 255 bytes of UTF-8 without a NUL; what is no such key is ErrNoKey. Two messages
	// with the same key are the same to this consumer: the second has no effect. Never make one of the delivery tag, which
	// counts anew on each channel, nor of the exchange or the routing key, which are others when a message comes from a
	// retry queue. Default: MessageId, which the publishers of this module set, and keep when they send
	// again; it stops what is delivered twice, not a sender that tells the same fact under two ids. For that take what the
	// fact is about: an order's number and its version.
	Key func(d amqp.Delivery) string

	// UUIDKeys stores keys in 16 bytes instead of as text. Keys that are no UUID in its usual form of 36 characters are
	// ErrNoKey; upper and lower case of one are the same. It goes with the table: all consumers of one agree.
	UUIDKeys bool

	// Retention is how long a key is known, at least, from the BEGIN of its transaction on; a message that comes again later takes effect again. It must be longer
	// than a message can be on its way: the queue's TTL, all delays of its retries, and the age at which somebody still
	// redrives dead letters. At least a second. Default 7 days; -1 for ever.
	Retention time.Duration

	// LockTimeout is how long to wait while the same key is being worked on in another transaction, in milliseconds; then it
	// is ErrBusy. The wait holds a connection of the pool. It replaces the session's lock_timeout for that one statement.
	// Default 5 s; -1 ErrBusy at once.
	LockTimeout time.Duration

	// IsoLevel is the isolation level of the transactions that the Inbox begins. Default: the database's, in general read
	// committed, which is all that it needs for itself.
	IsoLevel pgx.TxIsoLevel

	// Logger is told failures of Run and their end, never a message that goes well. Default slog.Default().
	Logger *slog.Logger

	// MeterProvider is where the metrics go. Default: the global one of package otel.
	MeterProvider metric.MeterProvider
}

const (
	defaultTable       = "inbox"
	defaultRetention   = 7 * 24 * time.Hour
	defaultLockTimeout = 5 * time.Second
	minRetention       = time.Second
	forever            = -1

	maxKey        = 255              // bytes; of the consumer as well
	longestSuffix = len("_schema")   // of the tables beside the one of keys
	maxWait       = math.MaxInt32    // of lock_timeout, in ms
	shortestWait  = time.Millisecond // of lock_timeout, where 0 means for ever
)

// validate returns every fault of cfg at once.
func (cfg Config) validate() error {
	var faults []error
	if cfg.Schema != "" {
		faults = append(faults, migrate.CheckName("Schema", cfg.Schema, 0))
	}
	if cfg.Table != "" {
		faults = append(faults, migrate.CheckName("Table", cfg.Table, longestSuffix))
	}
	if r := cfg.Retention; r != 0 && r != forever && r < minRetention {
		faults = append(faults, fmt.Errorf("Retention: %v, must be at least %v, or -1 for ever", r, minRetention))
	}
	if l := cfg.LockTimeout; l != 0 && l != -1 && (l < shortestWait || l.Milliseconds() > maxWait) {
		faults = append(faults, fmt.Errorf("LockTimeout: %v, must be 1 ms to 24 days, or -1 not to wait", l))
	}
	if !slices.Contains([]pgx.TxIsoLevel{"", pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted}, cfg.IsoLevel) {
		faults = append(faults, fmt.Errorf("IsoLevel: %q is none", cfg.IsoLevel))
	}
	return errors.Join(faults...)
}

// withDefaults returns cfg with the defaults filled in. The LockTimeout of -1 is PostgreSQL's shortest.
func (cfg Config) withDefaults() Config {
	if cfg.Table == "" {
		cfg.Table = defaultTable
	}
	if cfg.Key == nil {
		cfg.Key = func(d amqp.Delivery) string { return d.MessageId }
	}
	if cfg.Retention == 0 {
		cfg.Retention = defaultRetention
	}
	switch cfg.LockTimeout {
	case 0:
		cfg.LockTimeout = defaultLockTimeout
	case -1:
		cfg.LockTimeout = shortestWait
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	return cfg
}

// Inbox knows which messages a consumer has handled. It is safe for concurrent use and has no Close: it ends with its pool.
type Inbox struct {
	pool     *pgxpool.Pool // nil: only Claim and DDL
	consumer string
	cfg      Config // with defaults
	sql      statements
	runner   runner
	metrics  metrics
}

// New returns an Inbox of the given consumer: a logical name, such as "billing", which is the same in all instances and stays
// the same when its queue is renamed. Keys are known by consumer: two that get the same message both handle it. 1 to 255
// bytes of UTF-8. The pool is the caller's to close; without one only Claim and DDL work. A transaction takes one of its
// connections as long as its function runs, so it should have as many as there are handlers at once, and some for the rest
// of the program. New does no I/O and returns every fault at once, each naming its field.
func New(pool *pgxpool.Pool, consumer string, cfg Config) (*Inbox, error) {
	faults := cfg.validate()
	if fault := storable(consumer); fault != "" {
		faults = errors.Join(fmt.Errorf("consumer: %s", fault), faults)
	}
	cfg = cfg.withDefaults()
	m, err := newMetrics(cfg.MeterProvider, consumer)
	if err := errors.Join(faults, err); err != nil {
		return nil, fmt.Errorf("idempotency: new: %w", err)
	}
	return &Inbox{
		pool: pool, consumer: consumer, cfg: cfg, sql: newStatements(cfg), metrics: m,
		runner: runner{pool: pool, options: pgx.TxOptions{IsoLevel: cfg.IsoLevel}, openTime: openTime + cfg.LockTimeout},
	}, nil
}
