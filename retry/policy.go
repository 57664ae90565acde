package retry

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/warrenmq/warren/reconnect"
)

// Policy says how often and when a message is tried again. The zero value is complete: six attempts,
//
//	attempt         2     3     4      5       6
//	after another   1 s   5 s   25 s   125 s   10 min
//	since the first 1 s   6 s   31 s   2.6 min 12.6 min
//
// then the dead-letter queue. Delays count from the failure before, and are never shorter than said. Some others:
//
//	Policy                                                      Delays
//	{MaxAttempts: 3}                                            1 s, 5 s
//	{InitialDelay: 100 ms, Multiplier: 2, MaxDelay: 1 s}        100, 200, 400, 800 ms, 1 s
//	{Multiplier: 1, InitialDelay: time.Minute}                  1 min, each time
//	{MaxAttempts: -1}                                           as the default, then 10 min for ever
//	{MaxAttempts: 1}                                            none: failures go to the dead-letter queue at once
//
// Each delay is a queue on the broker. Versions of a service with different policies may run side by side, and a policy may be
// changed while messages wait; but for DelayedPlugin and DeadLetterExchange: a copy that comes back by a way that its reader
// has no policy for is a new message to it. A policy without delays cannot keep the time of an After under another: the message
// is handled when it comes.
type Policy struct {
	// MaxAttempts is how often a message is handled at most, the first time included. 1: never again; -1: no limit.
	// Default 6.
	MaxAttempts int

	// InitialDelay comes before the second attempt, and MaxDelay bounds the later ones. Whole milliseconds, at most 49
	// days. Defaults 1 s and 10 min, or InitialDelay where that is longer.
	InitialDelay, MaxDelay time.Duration

	// Multiplier, at least 1, is what each delay is longer than the one before. Default 5. Together with the others it must not
	// make more than 64 different delays.
	Multiplier float64

	// Jitter, 0 to 1, spreads messages that failed together: up to this part of a delay is added to it. A delay then has
	// four queues, or as many as its milliseconds allow. Default 0.
	Jitter float64

	// MaxAge is how long after a message's first failure its last attempt may begin: a message whose next delay would end
	// later goes to the dead-letter queue at once. Default: no limit.
	MaxAge time.Duration

	// DelayedPlugin carries delays by an exchange "<queue>.delayed" of the plugin rabbitmq_delayed_message_exchange, instead
	// of queues. See the package comment for what that gives up.
	DelayedPlugin bool

	// DeadLetterExchange is the queue's own, a durable direct exchange: copies go and come through it instead of the default
	// exchange. The queue must then exist when New is called, to be bound to it.
	DeadLetterExchange string

	// Declare is the mode for the delay queues, the dead-letter queue and the exchanges.
	Declare reconnect.Declare
}

const (
	defaultAttempts   = 6
	defaultInitial    = time.Second
	defaultMax        = 10 * time.Minute
	defaultMultiplier = 5

	// maxDelay is what both a queue's x-message-ttl, as RabbitMQ checks it, and the plugin's x-delay take.
	maxDelay = math.MaxUint32 * time.Millisecond
	// maxRungs bounds the queues that one policy makes.
	maxRungs = 64
	// spread is how many queues a delay has with Jitter.
	spread = 4
)

func (p Policy) withDefaults() Policy {
	setDefault(&p.MaxAttempts, defaultAttempts)
	setDefault(&p.InitialDelay, defaultInitial)
	setDefault(&p.MaxDelay, max(defaultMax, p.InitialDelay))
	setDefault(&p.Multiplier, defaultMultiplier)
	return p
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Delays returns the different delays of the policy, shortest first: the first comes before the second attempt, the next
// before the third, and the last before all that are left. Jitter adds to them. It is empty when nothing is tried again, and
// for a policy that New refuses.
func (p Policy) Delays() []time.Duration {
	if p.validate() != nil {
		return nil
	}
	return p.withDefaults().ladder(maxRungs)
}

// ladder is Delays of a policy with its defaults, but at most n of them.
func (p Policy) ladder(n int) (rungs []time.Duration) {
	d := min(p.InitialDelay, p.MaxDelay)
	for i := 1; (p.MaxAttempts < 0 || i < p.MaxAttempts) && len(rungs) < n; i++ {
		rungs = append(rungs, d)
		next := p.MaxDelay
		if f := float64(d) * p.Multiplier; f < float64(p.MaxDelay) {
			next = time.Duration(f).Round(time.Millisecond)
		}
		if next <= d {
			break // MaxDelay, or a multiplier that adds less than a millisecond
		}
		d = next
	}
	return rungs
}

// steps are the delays, with Jitter those that make up for rung, shortest first.
func (p Policy) steps(rung time.Duration) []time.Duration {
	most := time.Duration(float64(rung) * p.Jitter).Truncate(time.Millisecond)
	steps := []time.Duration{rung}
	for i := time.Duration(1); i < spread && most > 0; i++ {
		steps = append(steps, min(rung+(most*i/(spread-1)).Truncate(time.Millisecond), maxDelay))
	}
	return slices.Compact(steps)
}

// queues are the delays of all delay queues, sorted.
func (p Policy) queues() (all []time.Duration) {
	for _, rung := range p.ladder(maxRungs) {
		all = append(all, p.steps(rung)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// validate returns every fault of the policy at once.
func (p Policy) validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if p.MaxAttempts < -1 {
		bad("MaxAttempts: %d, must be positive, -1 for no limit, or 0 for %d", p.MaxAttempts, defaultAttempts)
	}
	wholeDelay := func(field string, d time.Duration, def any) {
		if d < 0 || d > maxDelay || d%time.Millisecond != 0 {
			bad("%s: %v, must be whole milliseconds up to %v, or 0 for %v", field, d, maxDelay, def)
		}
	}
	wholeDelay("InitialDelay", p.InitialDelay, defaultInitial)
	wholeDelay("MaxDelay", p.MaxDelay, defaultMax)
	full := p.withDefaults()
	if full.MaxDelay < full.InitialDelay && p.InitialDelay >= 0 && p.MaxDelay >= 0 {
		bad("MaxDelay: %v is shorter than InitialDelay, %v", full.MaxDelay, full.InitialDelay)
	}
	if !(full.Multiplier >= 1) || math.IsInf(p.Multiplier, 0) { // NaN is not
		bad("Multiplier: %v, must be at least 1, or 0 for %d", p.Multiplier, defaultMultiplier)
	}
	if !(p.Jitter >= 0 && p.Jitter <= 1) {
		bad("Jitter: %v, must be between 0 and 1", p.Jitter)
	}
	if p.MaxAge < 0 {
		bad("MaxAge: %v, must be positive, or 0 for no limit", p.MaxAge)
	}
	if p.Declare < reconnect.Active || p.Declare > reconnect.Skip {
		bad("Declare: %d is not a mode", p.Declare)
	}
	if len(faults) == 0 && len(full.ladder(maxRungs+1)) > maxRungs {
		bad("Multiplier: %v makes more than %d different delays between InitialDelay and MaxDelay, each of them a queue", full.Multiplier, maxRungs)
	}
	return errors.Join(faults...)
}
