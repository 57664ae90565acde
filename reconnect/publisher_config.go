package reconnect

import (
	"errors"
	"fmt"
	"time"
)

// PublisherConfig says how a Publisher sends. It is comparable; the zero value is complete and safe.
type PublisherConfig struct {
	// Transient sends messages that have no DeliveryMode as transient ones, which a restart of the broker may lose.
	// Default: persistent.
	Transient bool

	// AllowUnroutable makes it a success that no queue took a message. Default: it is a *ReturnedError.
	AllowUnroutable bool

	// FailFast makes a publish wait for no link and send nothing twice: without a connection, or while the broker blocks
	// publishers, it fails at once, and when a confirmation is lost with its link it returns ErrUnknown.
	FailFast bool

	// Timeout bounds a Publish whose context has no deadline. A PublishBatch it bounds from one confirmation to the next.
	// Default 30 s; -1 none.
	Timeout time.Duration

	// ConfirmTimeout bounds the wait for a confirmation on a channel that lives. A quorum queue that has lost its
	// majority neither confirms nor refuses: the publish then returns ErrUnknown. When that shows, which takes a third of
	// ConfirmTimeout but 1 s at least and 3 s at most, further messages to the same exchange and key go apart from all
	// others, few at a time, and those whose turn does not come within ConfirmTimeout fail without having been sent.
	// Below 9 s it may end before a connection has been given up from which the broker does not read because of such a
	// queue, so that messages to other queues are in doubt, too. Default 30 s; -1 none.
	ConfirmTimeout time.Duration

	// Window is the number of messages, 1 to 65535, that may be unconfirmed at a time; further ones wait. Default 256.
	Window int

	// MaxWaiting is the number of calls in progress, whatever they wait for, and MaxWaitingBytes that of the bytes of
	// their bodies; a Publish beyond either returns ErrBusy at once. A PublishBatch counts as one call, with the bodies
	// that it has in flight. A single body is let in however large it is. Defaults 10,000 and 64 MiB; -1 no limit.
	MaxWaiting, MaxWaitingBytes int

	// Shared makes NewPublisher return the same Publisher, and so the same channel, for equal settings on one Conn.
	// Many callers on one channel are the fast way; the price is that they share its window. Default: a channel of its
	// own.
	Shared bool
}

const (
	defaultTimeout         = 30 * time.Second
	defaultConfirmTimeout  = 30 * time.Second
	defaultWindow          = 256
	maxWindow              = 65535
	defaultMaxWaiting      = 10_000
	defaultMaxWaitingBytes = 64 << 20
)

// validate returns every fault of cfg at once.
func (cfg PublisherConfig) validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if cfg.Timeout < 0 && cfg.Timeout != -1 {
		bad("Timeout: %v, must be -1 (none), 0 (30 s) or positive", cfg.Timeout)
	}
	if cfg.ConfirmTimeout < 0 && cfg.ConfirmTimeout != -1 {
		bad("ConfirmTimeout: %v, must be -1 (none), 0 (30 s) or positive", cfg.ConfirmTimeout)
	}
	if cfg.Window < 0 || cfg.Window > maxWindow {
		bad("Window: %d, must be between 1 and %d, or 0 (%d)", cfg.Window, maxWindow, defaultWindow)
	}
	if cfg.MaxWaiting < -1 {
		bad("MaxWaiting: %d, must be -1 (no limit), 0 (10,000) or a number of calls", cfg.MaxWaiting)
	}
	if cfg.MaxWaitingBytes < -1 {
		bad("MaxWaitingBytes: %d, must be -1 (no limit), 0 (64 MiB) or a number of bytes", cfg.MaxWaitingBytes)
	}
	return errors.Join(faults...)
}

// withDefaults returns cfg with every zero value filled in.
func (cfg PublisherConfig) withDefaults() PublisherConfig {
	setDefault(&cfg.Timeout, func() time.Duration { return defaultTimeout })
	setDefault(&cfg.ConfirmTimeout, func() time.Duration { return defaultConfirmTimeout })
	setDefault(&cfg.Window, func() int { return defaultWindow })
	setDefault(&cfg.MaxWaiting, func() int { return defaultMaxWaiting })
	setDefault(&cfg.MaxWaitingBytes, func() int { return defaultMaxWaitingBytes })
	return cfg
}
