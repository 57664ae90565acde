package reconnect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/internal/telemetry"
	"github.com/warrenmq/warren/internal/wire"
)

// Conn is a connection that survives: two links to the broker, one for publishing and one for consuming, each dialed when
// first needed, dialed again after every loss, and furnished with the topology that was declared. All methods are safe
// for concurrent use.
type Conn struct {
	cfg        Config
	publishing *link
	consuming  *link
	registry   *registry
	board      *board

	// life ends, with ErrClosed as its cause, when Close begins.
	life context.Context
	end  context.CancelCauseFunc
	// workers are the supervised functions, calls the publishes and other calls in progress. Workers leave first: what
	// they do at the end may still publish.
	workers, calls *gate

	sharedMu sync.Mutex
	shared   map[PublisherConfig]*Publisher // those with Shared set

	exchanges exchanges // what publishes have learned, for all publishers
	refused   refusals
	stalls    stalls

	telemetry *telemetry.T
	observed  watchers
	callers   atomic.Int64 // publishes in progress
	channels  openChannels // in confirm mode

	closing  sync.Once
	closed   chan struct{} // closed when Close has done its work
	closeErr error         // read after closed
}

// Dial connects to the broker at url, amqp[s]://user:password@host:port/vhost, and returns when the publishing link is up
// (with Config.Lazy at once). While no broker can be reached it tries again, with backoff, until ctx ends; a bad url or
// Config, wrong credentials (403), a virtual host that may not be opened (530) and a certificate that either side does not
// accept (*tls.CertificateVerificationError; tls.AlertError when it is the broker) are returned at once: for credentials
// that is when the broker says so, which takes it 3 s. Errors never contain the url. Of its query, the parameters certfile,
// keyfile, cacertfile, server_name_indication, auth_mechanism, heartbeat (s), connection_timeout (ms) and channel_max are
// known; where Config sets the same, that holds.
func Dial(ctx context.Context, url string, cfg Config) (*Conn, error) {
	d, err := newDialer(url, cfg)
	if invalid := cfg.validate(); invalid != nil {
		err = errors.Join(fmt.Errorf("reconnect: config: %w", invalid), err)
	}
	if err != nil {
		return nil, err
	}
	cfg = d.cfg
	c := &Conn{cfg: cfg, registry: newRegistry(), board: newBoard(unpanicked(cfg.OnState, cfg.Logger)), workers: newGate(), calls: newGate(),
		shared: map[PublisherConfig]*Publisher{}, closed: make(chan struct{})}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.stalls.log = cfg.Logger.With("connection", cfg.Name)
	c.publishing = newLink(publishingLink, d, c.registry.all, c.board)
	c.consuming = newLink(consumingLink, d, c.registry.all, c.board)
	c.consuming.creating = c.publishing.creating
	c.publishing.made, c.consuming.made = c.refused.made, c.refused.made
	c.telemetry = telemetry.New(cfg.telemetry())
	c.observe()
	if cfg.Lazy {
		return c, nil
	}
	if _, err := c.publishing.session(ctx, true); err != nil {
		_ = c.Close(ctx)
		return nil, prefix.Wrap("reconnect", err)
	}
	return c, nil
}

// Declare puts t on the broker now, and again on every new connection before any channel of it is handed out. It blocks
// until the broker has answered, through losses of the link, or until ctx ends. A description with faults, or one that
// contradicts what is remembered, is returned before anything is declared. Then every entity is tried; the errors of all
// that failed are joined: *TopologyError where a person has to mend something (403, 406, an exchange type that the broker
// does not have, another description on this Conn), the *amqp.Error of a passive entity that is missing (404) or an
// exclusive queue that another connection holds (405). What failed is not remembered. Exclusive queues, and their
// bindings, are declared on the consuming link.
//
// What is remembered and cannot be declared on a new connection holds back the publishes and the supervised functions
// that name it; unless it is for a person to mend, it is asked for again with backoff.
func (c *Conn) Declare(ctx context.Context, t Topology) error {
	if !c.calls.enter() {
		return ErrClosed
	}
	defer c.calls.leave()
	items, err := c.admit(t)
	if err != nil {
		return err
	}
	return c.declare(ctx, c.declaringLink(items), items)
}

// admit turns t into what is to be declared, or says what is wrong with it.
func (c *Conn) admit(t Topology) ([]item, error) {
	items, err := t.items(c.cfg.Declare)
	if err != nil {
		return nil, fmt.Errorf("reconnect: topology: %w", err)
	}
	return c.registry.admit(items)
}

// declare declares items on l, again after a loss of the connection, and remembers what succeeded.
func (c *Conn) declare(ctx context.Context, l *link, items []item) error {
	for {
		s, err := l.session(ctx, false)
		if err != nil {
			return prefix.Wrap("reconnect: declare", err)
		}
		faults := s.declared.all(ctx, items)
		if len(faults) > 0 && !s.alive() && ctx.Err() == nil {
			continue // the link backs off when it dials
		}
		for _, it := range items {
			if s.declared.has(it) {
				c.registry.remember([]item{it})
				c.isThere(it)
			}
		}
		return errors.Join(faults...)
	}
}

// isThere makes the links forget that it could not be declared: it now was, on one of them.
func (c *Conn) isThere(it item) {
	for _, l := range []*link{c.publishing, c.consuming} {
		if s, _, _, _ := l.look(); s != nil {
			s.declared.forgive(it.entity)
		}
	}
}

func hasExclusive(items []item) bool {
	for _, it := range items {
		if it.exclusive {
			return true
		}
	}
	return false
}

// Forget makes reconnects no longer declare what is in t. It deletes nothing on the broker and does no I/O.
func (c *Conn) Forget(t Topology) {
	if items, err := t.items(c.cfg.Declare); err == nil {
		c.registry.forget(items)
	}
}

// Channel opens a channel on the consuming link, for a few calls of the driver's API. It blocks until the link is up or
// ctx ends. The caller closes the channel; it is not replaced when it is lost. For work that has to survive reconnects
// use Supervise, whose comment also says what to do before a close when messages were acknowledged on a quorum queue.
func (c *Conn) Channel(ctx context.Context) (*amqp.Channel, error) {
	if !c.calls.enter() {
		return nil, ErrClosed
	}
	defer c.calls.leave()
	s, err := c.consuming.session(ctx, false)
	if err != nil {
		return nil, prefix.Wrap("reconnect: channel", err, "open channel: ")
	}
	ch, err := s.channel(ctx)
	if err != nil {
		return nil, prefix.Wrap("reconnect: channel", err, "open channel: ")
	}
	return ch, nil
}

// Inspect returns the number of messages that are ready in a queue and of its consumers, both as the broker knows them
// now. A queue that does not exist is an *amqp.Error with code 404. It blocks until the broker answers or ctx ends.
func (c *Conn) Inspect(ctx context.Context, queue string) (amqp.Queue, error) {
	if err := errors.Join(shortQueueName(queue)...); err != nil {
		return amqp.Queue{}, fmt.Errorf("reconnect: inspect: %w", err)
	}
	if !c.calls.enter() {
		return amqp.Queue{}, ErrClosed
	}
	defer c.calls.leave()
	s, err := c.readingLink().session(ctx, false)
	if err != nil {
		return amqp.Queue{}, prefix.Wrap(fmt.Sprintf("reconnect: inspect queue %q", queue), err)
	}
	result := make(chan amqp.Queue, 1)
	err = s.onChannel(ctx, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		result <- q
		return err
	})
	if err != nil {
		return amqp.Queue{}, prefix.Wrap(fmt.Sprintf("reconnect: inspect queue %q", queue), err)
	}
	return <-result, nil
}

func shortQueueName(queue string) []error {
	return []error{wire.ShortString("queue", queue), notEmpty("queue", queue)}
}

func notEmpty(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s: empty", field)
	}
	return nil
}

// declaringLink is the link on which items are declared.
func (c *Conn) declaringLink(items []item) *link {
	if hasExclusive(items) {
		return c.consuming
	}
	return c.readingLink()
}

// readingLink is the link for questions: the consuming one when it is in use or the other is blocked, since an alarm does
// not stop it.
func (c *Conn) readingLink() *link {
	if c.consuming.started() {
		return c.consuming
	}
	if s, _ := c.publishing.now(); s != nil {
		if s.isBlocked() {
			return c.consuming
		}
	}
	return c.publishing
}

// Ping makes a round trip to the broker on each link in use and returns what is down, or which supervised function has no
// channel, as one joined error; nil means that all works. It is bounded by ctx. A publishing link that the broker blocks
// is down, and reported at once, with ErrBlocked. It says nothing about a link that nothing has used yet (with Lazy,
// that may be both), or a function that has ended: that returned its error.
func (c *Conn) Ping(ctx context.Context) error {
	if !c.calls.enter() {
		return ErrClosed
	}
	defer c.calls.leave()
	var wg sync.WaitGroup
	links := []*link{c.publishing, c.consuming}
	faults := make([]error, len(links))
	for i, l := range links {
		if l.started() {
			wg.Go(func() { faults[i] = l.ping(ctx) })
		}
	}
	wg.Wait()
	for _, s := range c.board.all() {
		if s.Phase == phaseStarting {
			faults = append(faults, fmt.Errorf("reconnect: %s: no channel: %s", s.Name, s.Reason))
		}
	}
	return errors.Join(faults...)
}

func (l *link) ping(ctx context.Context) error {
	s, err := l.now()
	if err == nil {
		if until, reason := s.blocking(); until != nil {
			err = blockedBy(reason)
		} else {
			err = s.onChannel(ctx, func(*amqp.Channel) error { return nil })
		}
	}
	if err != nil {
		return prefix.Wrap("reconnect: "+l.role+" link", err)
	}
	return nil
}

// State returns the states of the links in use and then of the supervised functions. It does not block.
func (c *Conn) State() []State { return c.board.all() }

// Config returns the configuration in force, with its defaults filled in.
func (c *Conn) Config() Config { return c.cfg }
