package consume

import "time"

// arrivals answers how long a message may have been waiting in the prefetch when it is taken: the broker's consumer timeout counts
// that time too, and the driver does not say when a delivery came in.
//
// With prefetch p the broker cannot have sent the n-th message of a consumer (counted from 0) before n-p+1 of them were settled, nor
// before the consumer began, nor before the worker last found nothing at hand. The latest of these is the earliest
// time it can have come.
type arrivals struct {
	floor   time.Time   // consumer began, or nothing was at hand
	settled []time.Time // times of the last p settlements, by their number modulo p
	taken   int
	done    int
}

// reset begins anew for a consumer with prefetch p that was started at since.
func (a *arrivals) reset(p int, since time.Time) {
	if cap(a.settled) < p {
		a.settled = make([]time.Time, p)
	}
	a.settled = a.settled[:p]
	a.floor, a.taken, a.done = since, 0, 0
}

// idle notes that at now there was nothing to take.
func (a *arrivals) idle(now time.Time) { a.floor = now }

// take returns the earliest time at which the message taken next can have been delivered.
func (a *arrivals) take() time.Time {
	p := len(a.settled)
	at := a.floor
	if a.taken >= p && a.done > a.taken-p {
		if freed := a.settled[a.taken%p]; freed.After(at) {
			at = freed
		}
	}
	a.taken++
	return at
}

// full reports whether as many messages are taken and not settled as the consumer may have.
func (a *arrivals) full() bool { return a.taken-a.done >= len(a.settled) }

// settle notes that n messages were settled at now.
func (a *arrivals) settle(n int, now time.Time) {
	if len(a.settled) == 0 {
		return
	}
	for range n {
		a.settled[a.done%len(a.settled)] = now
		a.done++
	}
}
