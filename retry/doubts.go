package retry

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// doubts are the verdicts whose copies could not be confirmed, on messages that whoever consumes has kept: when it calls
// again, only the copy is sent again, and the handler does not run a second time for the same attempt. A message that is
// handed back instead comes again as another delivery; its entry is dropped after a while.
type doubts struct {
	n atomic.Int64 // len(of), so that a message which nobody doubts does not take the lock

	mu    sync.Mutex
	of    map[deliveryID]doubt
	swept time.Time
}

type doubt struct {
	verdict
	at time.Time
}

// deliveryID is unique in this process: a tag is within its channel, whose acknowledger it has in a loop over the raw
// driver; a loop of ours shows handlers one acknowledger of its own, but never uses a consumer tag twice.
type deliveryID struct {
	acknowledger amqp.Acknowledger
	consumer     string
	tag          uint64
}

const (
	maxDoubts  = 10_000
	doubtLife  = time.Hour // twice the longest that a broker leaves a message with its consumer, unless told to
	sweepEvery = time.Minute
)

// idOf returns the identity of d; one that was not received has none.
func idOf(d *amqp.Delivery) (deliveryID, bool) {
	if d.Acknowledger == nil || d.DeliveryTag == 0 || reflect.TypeOf(d.Acknowledger).Kind() != reflect.Pointer {
		return deliveryID{}, false
	}
	return deliveryID{d.Acknowledger, d.ConsumerTag, d.DeliveryTag}, true
}

// take returns the verdict on d that is in doubt, and forgets it.
func (s *doubts) take(d *amqp.Delivery) (verdict, bool) {
	if s.n.Load() == 0 {
		return verdict{}, false
	}
	id, ok := idOf(d)
	if !ok {
		return verdict{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.of[id]
	delete(s.of, id)
	s.n.Store(int64(len(s.of)))
	return found.verdict, ok
}

// keep remembers v until d comes again.
func (s *doubts) keep(d *amqp.Delivery, v verdict) {
	id, ok := idOf(d)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.swept) > sweepEvery {
		s.swept = now
		for id, old := range s.of {
			if now.Sub(old.at) > doubtLife {
				delete(s.of, id)
			}
		}
	}
	if len(s.of) >= maxDoubts {
		return // its handler will run again
	}
	if s.of == nil {
		s.of = map[deliveryID]doubt{}
	}
	s.of[id] = doubt{v, now}
	s.n.Store(int64(len(s.of)))
}
