package consume

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// spell is the life of one consumer on a channel: its tag and prefetch never change.
type spell struct {
	tag        string
	prefetch   int
	since      time.Time
	deliveries <-chan amqp.Delivery

	halt    chan struct{} // closed: take nothing new
	halted  atomic.Bool
	haltOne sync.Once

	cancelled bool // by us; the controller's
	finished  int  // handlers finished, and whether growth was asked for; the worker's
	asked     bool
}

func newSpell(tag string, prefetch int) *spell {
	return &spell{tag: tag, prefetch: prefetch, since: time.Now(), halt: make(chan struct{})}
}

// stop has the worker start nothing more of this spell.
func (s *spell) stop() {
	s.haltOne.Do(func() {
		s.halted.Store(true)
		close(s.halt)
	})
}

// grown is the prefetch that follows p in a slow start up to limit.
func grown(p, limit int) int { return min(2*p, limit) }

// ripe reports, once, that as many handlers have finished as the prefetch is, so that it may grow.
func (s *spell) ripe(limit int) bool {
	s.finished++
	if s.asked || s.prefetch >= limit || s.finished < s.prefetch {
		return false
	}
	s.asked = true
	return true
}

// newTag returns a consumer tag that was not used before: a tag must be unique on its channel, and from RabbitMQ 4.3 on a cancelled one is
// not free again.
func newTag(name string) string {
	const longest = 200 // of 255 bytes
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "")
	}
	var b [8]byte
	rand.Read(b[:]) // never fails
	return name + "-" + hex.EncodeToString(b[:])
}
