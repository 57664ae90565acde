package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/migrate"
	"github.com/warrenmq/warren/internal/wire"
)

// Config says where an outbox keeps its messages. The zero value is complete and safe. Every program that enqueues into an
// outbox or relays from it uses the same Schema, Table and Lanes.
type Config struct {
	// Schema is the database schema of the tables. Default: none, the tables are found by the search_path of each session,
	// which must then be the same for all.
	Schema string

	// Table is the name of the table of waiting messages and the beginning of the names of all others; at most 46 bytes, any
	// text. Default "outbox".
	Table string

	// Lanes is the number of tables that messages are spread over by their OrderingKey, so that as many relays can send at
	// once; 1 to 64. One relay sends about as much as one channel can confirm, which is enough for most. Order holds within
	// a lane. Default 1.
	//
	// To have more lanes, Migrate first. What waits in lanes that are no longer used is sent as well. Either way a key may
	// change its lane, and so its order is kept over the change only when the outbox was empty in between.
	Lanes int

	// MaxBody, in bytes, is the largest body that is taken. It must not be above what the relay's publisher sends and the
	// broker takes, 16 MiB from RabbitMQ 4.0 on. Default 16 MiB; -1 no limit.
	MaxBody int

	// Archive has the relay keep what was sent, in a table with a partition for each day, of which old ones are dropped by
	// whoever wants to: the relay makes new ones, and needs the right to.
	Archive bool

	// Logger is told changes of state and failures, never a message that goes well. Default slog.Default().
	Logger *slog.Logger

	// TracerProvider and MeterProvider are where spans and metrics go. Defaults: the global ones of package otel.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider

	// Propagator writes the trace that a message is enqueued in into its headers. Default: the global one of package otel,
	// which does nothing until it is set.
	Propagator propagation.TextMapPropagator
}

const defaultTable = "outbox"

// validate returns every fault of cfg at once.
func (cfg Config) validate() error {
	var faults []error
	if cfg.Schema != "" {
		faults = append(faults, migrate.CheckName("Schema", cfg.Schema, 0))
	}
	if cfg.Table != "" {
		faults = append(faults, migrate.CheckName("Table", cfg.Table, longestSuffix))
	}
	if cfg.Lanes < 0 || cfg.Lanes > maxLanes {
		faults = append(faults, fmt.Errorf("Lanes: %d, must be between 1 and %d", cfg.Lanes, maxLanes))
	}
	if cfg.MaxBody < -1 {
		faults = append(faults, fmt.Errorf("MaxBody: %d, must be positive, or -1 for no limit", cfg.MaxBody))
	}
	return errors.Join(faults...)
}

// withDefaults returns cfg with the defaults filled in. Providers of package otel are asked for now: the global ones pass
// on to whatever is set later.
func (cfg Config) withDefaults() Config {
	if cfg.Table == "" {
		cfg.Table = defaultTable
	}
	if cfg.Lanes == 0 {
		cfg.Lanes = 1
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = wire.DefaultMaxBody
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	if cfg.Propagator == nil {
		cfg.Propagator = otel.GetTextMapPropagator()
	}
	return cfg
}

// Outbox is a set of tables into which messages are enqueued, within the transaction that they belong to, and from which a
// Relay sends them. It is safe for concurrent use and has no Close: it ends with its pool.
type Outbox struct {
	pool   *pgxpool.Pool // nil: only Enqueue, EnqueueBatch and DDL
	cfg    Config        // with defaults
	tables tables
	insert statements
	turn   atomic.Uint32 // the lane of messages without an ordering key

	wake           hub
	notify         debouncer
	notifyFailures atomic.Int32
}

var errNoPool = errors.New("pool: nil, this Outbox only enqueues")

// New returns an Outbox. It does no I/O. The pool is used by everything but Enqueue, EnqueueBatch and DDL, which are all that
// works without one; it is the caller's to close. New returns every fault of cfg at once, each naming its field.
func New(pool *pgxpool.Pool, cfg Config) (*Outbox, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("outbox: new: %w", err)
	}
	cfg = cfg.withDefaults()
	t := tables{schema: cfg.Schema, base: cfg.Table}
	return &Outbox{pool: pool, cfg: cfg, tables: t, insert: newStatements(t, cfg.Lanes)}, nil
}
