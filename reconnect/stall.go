package reconnect

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A quorum queue without its majority neither confirms nor refuses, and it harms others:
//
//   - what is unconfirmed keeps its slots of the window;
//   - the broker stops granting credit to a channel with 32 messages in such a queue, and after 400 more, to whatever
//     queue, it stops reading from the connection, without a word;
//   - the first message from a new channel holds up all others of that channel for a minute.
//
// So a destination that confirms nothing any more is stalled: messages to it go on a lane of their own, with few in
// flight, until one is confirmed again. The channel on which that showed is set aside, which means that it keeps what is
// unconfirmed and gets nothing new.
//
// A connection from which the broker does not read any more is given up, which puts in doubt whatever is unconfirmed on
// it. That is never done to one that is only slow: see checkRead. When it happens again and again while something is
// stalled, it takes twice as long each time.

const (
	// stallAfter is how long a message must have waited for its confirmation for its destination to count as stalled, far
	// longer than anything takes that works. With a short ConfirmTimeout it is a third of that, so that messages to other
	// destinations are not in doubt by then. It is never less than minStallAfter: all publishers of a Conn believe it, not
	// only the impatient one.
	stallAfter    = 3 * time.Second
	minStallAfter = time.Second
	// slowWindow is the window of the lane for stalled destinations: less than the 32 over which a channel loses credit.
	slowWindow = 16
	// wholeExchange is the number of stalled keys from which on all of an exchange is taken for stalled.
	wholeExchange = 8
	// maxStalls is how many destinations are known to be stalled.
	maxStalls = 1000
	// maxAside is how many channels of a Publisher may stand aside.
	maxAside = 4
)

// route is where a message is sent.
type route struct{ exchange, key string }

// stalls knows the stalled destinations, for all publishers of a Conn.
type stalls struct {
	log *slog.Logger
	any atomic.Bool // so that a publish does not take the lock

	mu    sync.RWMutex
	since map[route]time.Time
	keys  map[string]int // of an exchange, that are stalled
	given int            // connections that were given up since nothing was stalled
}

// has reports whether m goes to a stalled destination.
func (s *stalls) has(m *Message) bool {
	if !s.any.Load() {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, stalled := s.since[route{m.Exchange, m.Key}]
	return stalled || m.Exchange != "" && s.keys[m.Exchange] >= wholeExchange
}

// note takes in destinations that do not confirm.
func (s *stalls) note(routes []route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range routes {
		if _, known := s.since[r]; known {
			continue
		}
		if s.since == nil {
			s.since, s.keys = make(map[route]time.Time), make(map[string]int)
		}
		if len(s.since) >= maxStalls { // if it is so still, that shows again
			s.drop(s.oldest())
		}
		s.since[r] = time.Now()
		s.keys[r.exchange]++
		s.log.Warn("no confirmations: a queue behind it does not answer", "exchange", r.exchange, "key", r.key)
	}
	s.any.Store(len(s.since) > 0)
}

// confirmed takes in that a message was confirmed.
func (s *stalls) confirmed(exchange, key string) {
	if !s.any.Load() {
		return
	}
	r := route{exchange, key}
	s.mu.RLock()
	since, known := s.since[r]
	s.mu.RUnlock()
	if !known {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known = s.since[r]; !known { // another one was faster
		return
	}
	s.drop(r)
	s.any.Store(len(s.since) > 0)
	s.log.Info("confirmed again", "exchange", exchange, "key", key, "after", time.Since(since))
}

// gaveUp takes in that a connection was given up because the broker does not read from it.
func (s *stalls) gaveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given++
}

// patience is for how long nothing must move on a connection before it is given up.
func (s *stalls) patience() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return min(readAfter<<min(s.given, 10), maxPatience)
}

// drop and oldest are called with mu held.
func (s *stalls) drop(r route) {
	delete(s.since, r)
	if len(s.since) == 0 {
		s.given = 0
	}
	if s.keys[r.exchange]--; s.keys[r.exchange] == 0 {
		delete(s.keys, r.exchange)
	}
}

func (s *stalls) oldest() route {
	var oldest route
	var since time.Time
	for r, at := range s.since {
		if since.IsZero() || at.Before(since) {
			oldest, since = r, at
		}
	}
	return oldest
}
