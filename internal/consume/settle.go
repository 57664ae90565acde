package consume

import (
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// flushAfter is how long a finished message waits at most for others to be acknowledged with. quietAfter is how long after
// the last acknowledgement nothing is on its way from the queue any more, in all likelihood.
const (
	flushAfter = time.Millisecond
	quietAfter = 20 * time.Millisecond
)

// settler sends the settlements of one channel: each message once, and none after the channel was lost.
//
// The lock is held while an acknowledgement is handed to the driver, or two flushes could leave in the wrong order and the
// second would acknowledge what the first already did (406). The driver's write ends in a buffer that never blocks
// (internal/coalesce); over a connection without it, it may block for as long as the socket does.
type settler struct {
	to    amqp.Acknowledger
	count *counters
	gone  atomic.Bool // channel lost or given up; set before mu is taken, so that it holds even while a write is stuck

	mu       sync.Mutex // guards what follows, and the order of what is sent
	prefix   prefix
	every    int // size at which the prefix is flushed
	arrivals arrivals
	timer    *time.Timer
	frozen   bool
	quiet    []func() // called once, with mu held, when frozen and quiet
	sent     uint64   // settlements
	proven   uint64   // of these, the queue has got for sure
}

func newSettler(to amqp.Acknowledger, count *counters) *settler {
	s := &settler{to: to, count: count, every: 1}
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.timer.Stop()
	return s
}

// begin prepares for the deliveries of a consumer with this prefetch, started at since. Those of the one before are settled,
// except for what the worker handed back.
func (s *settler) begin(prefetch int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.every = max(1, prefetch/4)
	s.arrivals.reset(prefetch, since)
}

// take notes that a message was taken and returns the earliest time at which it can have been delivered.
func (s *settler) take() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.arrivals.take()
	s.askIfFull()
	return at
}

// freeze withholds acknowledgements until thaw, and calls quiet when nothing can be on its way from the queue to the consumer: when it
// has as much unacknowledged as it may, or (likely: unless the broker is very busy) after a while. Then the consumer can be
// cancelled at no cost: what a quorum queue has sent and the consumer's end overtakes is returned by the broker, and counted.
func (s *settler) freeze(quiet func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen, s.quiet = true, append(s.quiet, quiet) // growth, and a stop that comes just then
	s.timer.Reset(quietAfter)
	s.askIfFull()
}

// thaw ends freeze.
func (s *settler) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen, s.quiet = false, nil
	s.flushLocked()
}

func (s *settler) askIfFull() {
	if s.frozen && s.arrivals.full() {
		s.ask()
	}
}

func (s *settler) ask() {
	ask := s.quiet
	s.quiet = nil
	for _, quiet := range ask {
		quiet()
	}
}

// tick is what the timer does.
func (s *settler) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen {
		s.ask()
	}
	s.flushLocked()
}

// took reports whether any message of the present consumer was taken.
func (s *settler) took() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrivals.taken > 0
}

// idle notes that nothing is at hand. A single finished message is acknowledged at once, since at a low rate no other comes
// soon. Several wait for more: at a high rate the worker is only for a moment ahead of the goroutine by which the driver
// passes deliveries on. (To yield to that one, with runtime.Gosched, costs a whole time slice for each message while
// handlers keep all processors busy.)
func (s *settler) idle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prefix.n == 1 {
		s.flushLocked()
	}
	s.arrivals.idle(time.Now())
}

// done acknowledges tag, now or, together with others, within flushAfter. It returns false when the channel is gone.
func (s *settler) done(tag uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone.Load() {
		s.count.countStale(1)
		return false
	}
	switch {
	case !s.prefix.add(tag):
		return s.ack(tag, 1)
	case s.frozen:
	case s.prefix.n >= s.every:
		return s.flushLocked()
	case s.prefix.n == 1:
		s.timer.Reset(flushAfter)
	}
	return true
}

// hold keeps the acknowledgement of messages above tag from covering it; 0: nothing is to be held.
func (s *settler) hold(tag uint64) {
	s.mu.Lock()
	s.prefix.hold(tag)
	s.mu.Unlock()
}

// reject has the broker dead-letter tag. It returns false when the channel is gone.
func (s *settler) reject(tag uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
	return s.send(1, func() error { return s.to.Reject(tag, false) })
}

// back returns n messages, of which tag is the last, to the queue. If they are several, they must be all that is unsettled up to there.
func (s *settler) back(tag uint64, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.send(n, func() error { return s.to.Nack(tag, n > 1, true) }) {
		return false
	}
	s.count.countReturned(n)
	return true
}

// moved acknowledges tag, which is back in the queue as a copy.
func (s *settler) moved(tag uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ack(tag, 1) {
		return false
	}
	s.count.returned.Add(1)
	return true
}

// sentSoFar is how many settlements were sent.
func (s *settler) sentSoFar() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// proved notes that the queue has carried out the first so many.
func (s *settler) proved(sent uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proven = max(s.proven, sent)
}

// underWay is how many settlements the queue may not have got yet.
func (s *settler) underWay() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent - s.proven
}

// flush acknowledges the finished prefix.
func (s *settler) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
}

func (s *settler) flushLocked() bool {
	if s.frozen {
		return true
	}
	tag, n := s.prefix.take()
	if n == 0 {
		return true
	}
	if s.every > 1 { // else it runs for freeze only
		s.timer.Stop()
	}
	return s.ack(tag, n)
}

func (s *settler) ack(tag uint64, n int) bool {
	return s.send(n, func() error { return s.to.Ack(tag, n > 1) })
}

// send hands n settlements to the driver. An error of the driver means that the channel is closed: it cannot say that of a message.
func (s *settler) send(n int, write func() error) bool {
	if !s.gone.Load() && write() == nil {
		s.sent++
		s.arrivals.settle(n, time.Now())
		return true
	}
	s.gone.Store(true)
	s.count.countStale(n)
	return false
}

// kill ends all settling. It returns how many finished messages were not acknowledged yet: they come again.
func (s *settler) kill() int {
	s.gone.Store(true)
	if !s.mu.TryLock() {
		return 0 // a write is stuck, or just ending: it counts its own
	}
	defer s.mu.Unlock()
	s.timer.Stop()
	_, n := s.prefix.take()
	s.count.countStale(n)
	return n
}

// dead reports whether nothing is settled any more.
func (s *settler) dead() bool { return s.gone.Load() }
