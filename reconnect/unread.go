package reconnect

import (
	"context"
	"errors"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// readAfter is for how long nothing must have moved on a connection for it to be suspected of not being read.
	readAfter = 3 * time.Second
	// maxPatience bounds how that grows when connections are given up again and again.
	maxPatience = 32 * readAfter
	// checkEvery is how often a connection is looked at meanwhile.
	checkEvery = 100 * time.Millisecond

	// slowestLink is the number of bytes a second below which a link is no use. What has left our buffer may wait in
	// others, of the system or of a proxy, that nobody can look into: it is given the time that it would take at this
	// rate, though no more than maxTransit.
	slowestLink = 64 << 10
	maxTransit  = 2 * time.Minute
)

// transit is how long so many bytes may be on their way.
func transit(bytes int64) time.Duration {
	if bytes >= slowestLink*int64(maxTransit/time.Second) {
		return maxTransit
	}
	return time.Duration(max(bytes, 0)) * time.Second / slowestLink
}

// noteRead notes that the broker has read what was written before that many bytes were.
func (s *session) noteRead(written int64) {
	for known := s.read.Load(); written > known; known = s.read.Load() {
		if s.read.CompareAndSwap(known, written) {
			return
		}
	}
}

// traffic is how much has moved on a connection.
type traffic struct{ sent, heard, read, unsent int64 }

func (s *session) traffic() traffic {
	t := traffic{sent: s.sock.Sent(), heard: s.sock.Heard(), read: s.read.Load()}
	t.unsent = s.sock.Written() - t.sent
	return t
}

// quiet tells for how long nothing has moved on a connection.
type quiet struct {
	since time.Time
	last  traffic
}

// look takes in what has moved by now. What leaves our buffer as soon as it is there says nothing, since the system
// takes in a lot for a peer that reads nothing; what had to wait there for what is before it does.
func (q *quiet) look(now time.Time, t traffic) time.Duration {
	drained := q.last.unsent > 0 && t.sent > q.last.sent
	if q.since.IsZero() || drained || t.heard != q.last.heard || t.read != q.last.read {
		q.since = now
	}
	q.last = t
	return now.Sub(q.since)
}

// errUnread is why a session ends from which the broker does not read.
var errUnread = errors.New("the broker, which answers elsewhere, does not read from this connection any more")

// checkRead finds out whether the broker still reads from s, and ends s when it does not: when it answers nothing, nothing
// moves in either direction but heartbeats for longer than a slow network explains, and it answers on a new connection. A
// broker that answers nowhere is left to the heartbeats.
func (s *session) checkRead(stalls *stalls, log *slog.Logger) {
	if s.checking.Swap(true) {
		return
	}
	defer s.checking.Store(false)
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	answered := make(chan struct{})
	if !s.spawn(func() {
		defer close(answered)
		written := s.sock.Written()
		if s.onChannel(ctx, func(*amqp.Channel) error { return nil }) == nil {
			s.noteRead(written)
		}
	}) {
		return
	}
	look := time.NewTicker(checkEvery)
	defer look.Stop()
	var q quiet
	for patience := stalls.patience(); ; {
		select {
		case <-answered:
			return
		case <-look.C:
		}
		if s.isBlocked() {
			q = quiet{}
			continue
		}
		if !s.unread(&q, patience) {
			continue
		}
		if s.answersElsewhere == nil || s.answersElsewhere(s.life) != nil {
			q, patience = quiet{}, min(2*patience, maxPatience)
			continue
		}
		if s.isBlocked() || !s.unread(&q, patience) {
			continue
		}
		select {
		case <-answered: // after all
			return
		default:
		}
		log.Warn("giving the connection up", "error", errUnread)
		stalls.gaveUp()
		s.end(errUnread)
		s.sock.Kill()
		return
	}
}

// unread reports whether nothing has moved for so long, and for as long as may be on its way what the broker is not known
// to have read.
func (s *session) unread(q *quiet, patience time.Duration) bool {
	t := s.traffic()
	return q.look(time.Now(), t) >= patience+transit(t.sent+t.unsent-t.read)
}
