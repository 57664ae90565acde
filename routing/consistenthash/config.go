package consistenthash

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// ConsumerConfig says how a Consumer consumes. The zero value is complete.
type ConsumerConfig struct {
	// Prefetch is how many messages of each partition an instance holds at most, 1 to 65535. More than one hides the network's
	// delay behind short handlers; the price is that all of them count as delivered when the instance crashes, up to RabbitMQ
	// 4.2 also when it stops, and that a message which did so more than DeliveryLimit times is dead-lettered unseen. Default 1.
	Prefetch int

	// MaxAttempts is how often a message is handed to the handler, in place, before it is dead-lettered. Attempts begin anew when
	// it comes to another instance. Default 5.
	MaxAttempts int

	// InitialDelay is the pause before the second attempt; it doubles up to MaxDelay. An error with a method RetryAfter()
	// time.Duration is given that time, if it is longer. The partition waits. Defaults 100 ms and 10 s; -1 for InitialDelay: none.
	InitialDelay, MaxDelay time.Duration

	// HandlerTimeout ends the context of one attempt. With the pauses, and times Prefetch, the attempts must fit into the Conn's
	// ConsumerTimeout, which the broker enforces by closing the channel; a message that has taken 5/6 of that is handed back
	// between two attempts, and begins anew. -1: none. Default 5/6 of ConsumerTimeout over Prefetch x MaxAttempts: 5 min.
	HandlerTimeout time.Duration

	// ShutdownTimeout is how long handlers may go on after Run's context has ended. Default 30 s; -1 no limit.
	ShutdownTimeout time.Duration
}

const (
	defaultMaxAttempts  = 5
	defaultInitialDelay = 100 * time.Millisecond
	defaultMaxDelay     = 10 * time.Second
)

// complete returns cfg with its defaults filled in, or all that is wrong with it, except for what the loop checks.
func (cfg ConsumerConfig) complete(consumerTimeout time.Duration) (ConsumerConfig, error) {
	cfg.Prefetch = cmp.Or(cfg.Prefetch, 1)
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, defaultMaxAttempts)
	cfg.InitialDelay = cmp.Or(cfg.InitialDelay, defaultInitialDelay)
	cfg.MaxDelay = cmp.Or(cfg.MaxDelay, max(defaultMaxDelay, cfg.InitialDelay))
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if cfg.MaxAttempts < 1 {
		bad("MaxAttempts: %d, must be at least 1, or 0 for %d", cfg.MaxAttempts, defaultMaxAttempts)
	}
	if cfg.InitialDelay < -1 {
		bad("InitialDelay: %v, must be positive, -1 for none, or 0 for %v", cfg.InitialDelay, defaultInitialDelay)
	}
	if cfg.MaxDelay < cfg.InitialDelay {
		bad("MaxDelay: %v, must not be below InitialDelay (%v)", cfg.MaxDelay, cfg.InitialDelay)
	}
	if len(faults) > 0 || cfg.Prefetch < 1 || consumerTimeout < 0 {
		return cfg, errors.Join(faults...)
	}
	each := consumerTimeout / time.Duration(cfg.Prefetch)
	if cfg.HandlerTimeout == 0 {
		cfg.HandlerTimeout = max(1, min(each/6*5, each-cfg.pauses(each))/time.Duration(cfg.MaxAttempts))
	}
	// Not multiplied: that could overflow.
	if cfg.HandlerTimeout > each/time.Duration(cfg.MaxAttempts) {
		bad("HandlerTimeout: %v for each of %d attempts at each of %d messages is above ConsumerTimeout (%v)",
			cfg.HandlerTimeout, cfg.MaxAttempts, cfg.Prefetch, consumerTimeout)
	} else if pauses := cfg.pauses(each); pauses > each-max(0, cfg.HandlerTimeout)*time.Duration(cfg.MaxAttempts) {
		bad("MaxAttempts: %d, with pauses of %v up to %v and HandlerTimeout (%v), is above ConsumerTimeout (%v) for %d messages",
			cfg.MaxAttempts, cfg.InitialDelay, cfg.MaxDelay, cfg.HandlerTimeout, consumerTimeout, cfg.Prefetch)
	}
	return cfg, errors.Join(faults...)
}

// pauses is the sum of the pauses between all attempts, or more than limit.
func (cfg ConsumerConfig) pauses(limit time.Duration) (sum time.Duration) {
	for attempt := 1; attempt < cfg.MaxAttempts && sum <= limit; attempt++ {
		sum += cfg.pause(attempt)
	}
	return sum
}

// pause is the time between the failure of an attempt, counted from 1, and the next.
func (cfg ConsumerConfig) pause(attempt int) time.Duration {
	if cfg.InitialDelay < 0 {
		return 1
	}
	d := cfg.InitialDelay
	for ; attempt > 1 && d < cfg.MaxDelay; attempt-- {
		d *= 2
		if d < 0 {
			return cfg.MaxDelay
		}
	}
	return min(d, cfg.MaxDelay)
}
