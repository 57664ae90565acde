package reconnect

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// refusals remembers what the broker closed channels over, so that the next message of the kind does not cost the next
// channel: for a while, growing with each refusal, it fails at once; then one message of the kind is tried on a channel of
// its own while the others wait for what becomes of it. The zero value is ready.
type refusals struct {
	mu    sync.RWMutex
	of    map[scope]*refusal
	order []scope // oldest first
}

// scope is what a refusal is about. The code of the broker's error tells a name from the rest; beyond that its text is all
// there is, and no more than a hint.
type scope struct {
	about         subject
	exchange, key string
}

type subject int

const (
	aboutExchange subject = iota // missing, forbidden, internal
	aboutKey                     // forbidden with this key: a topic permission, a forged address
	aboutSize                    // a body too large
	aboutRoute                   // something else in a message with this exchange and key
)

// refusal is guarded by refusals.mu.
type refusal struct {
	err   *amqp.Error
	size  int       // aboutSize: the smallest body refused
	until time.Time // when it may be tried again
	pause time.Duration
	probe chan struct{} // closed when the one trying is through; nil: nobody is
}

const (
	refusalPause    = time.Second
	maxRefusalPause = 30 * time.Second
	maxRefusals     = 1000
	// strikesWithin is how soon after another a second refusal that nothing explains must come to make messages with
	// that exchange and key go aside: they cannot be told from good ones, which must not fail.
	strikesWithin = 10 * time.Second
)

// passage is the leave to send a message.
type passage struct {
	aside bool // on the quarantine channel
	scope scope
	probe *refusal // this is the one trying
}

// find returns what stands against m. It is called with mu held.
func (r *refusals) find(m *Message) (scope, *refusal) {
	if len(r.of) == 0 {
		return scope{}, nil
	}
	for _, s := range [...]scope{{aboutExchange, m.Exchange, ""}, {aboutKey, m.Exchange, m.Key}, {about: aboutSize}, {aboutRoute, m.Exchange, m.Key}} {
		if found, ok := r.of[s]; ok && (s.about != aboutSize || len(m.Body) >= found.size) {
			return s, found
		}
	}
	return scope{}, nil
}

// none reports whether nothing stands against m.
func (r *refusals) none(m *Message) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, found := r.find(m)
	return found == nil
}

// standing returns the refusal that m would meet again, as far as that is certain.
func (r *refusals) standing(m *Message) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, found := r.find(m)
	if found == nil || s.about == aboutRoute || !time.Now().Before(found.until) {
		return nil
	}
	return found.err
}

// admit returns how m may be sent, or the refusal that it would meet again. While another message of its kind is being
// tried it waits for the outcome, or returns the refusal when it must not wait.
func (r *refusals) admit(ctx context.Context, m *Message, wait bool) (passage, error) {
	for {
		p, trying, err := r.look(m)
		if trying == nil || !wait {
			return p, err
		}
		select {
		case <-trying:
		case <-ctx.Done():
			return passage{}, ended(ctx)
		}
	}
}

// look is one look. When another message is being tried it returns the channel that is closed after that, and the refusal
// that stands so far.
func (r *refusals) look(m *Message) (passage, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, found := r.find(m)
	switch now := time.Now(); {
	case found == nil:
		return passage{}, nil, nil
	case s.about == aboutRoute:
		if now.After(found.until.Add(strikesWithin)) {
			r.drop(s)
		}
		return passage{aside: now.Before(found.until)}, nil, nil
	case now.Before(found.until):
		return passage{}, nil, found.err
	case found.probe != nil:
		return passage{}, found.probe, found.err
	}
	found.probe = make(chan struct{})
	return passage{aside: true, scope: s, probe: found}, nil, nil
}

// end tells what became of the message that was let through: taken says that the broker processed it.
func (r *refusals) end(p passage, taken bool) {
	if p.probe == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if taken && r.of[p.scope] == p.probe {
		r.drop(p.scope)
	}
	close(p.probe.probe)
	p.probe.probe = nil
}

// refuse remembers that the broker closed a channel over a message to exchange with key and a body of size bytes.
func (r *refusals) refuse(exchange, key string, size int, err *amqp.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	s := scopeOf(exchange, key, err)
	found, isNew := r.entry(s, err, size)
	switch {
	case isNew && s.about == aboutRoute: // the first strike
		found.until = now
	case now.Before(found.until): // sent before the last refusal was known
	default:
		found.pause = min(max(2*found.pause, refusalPause), maxRefusalPause)
		found.until = now.Add(found.pause)
	}
}

// made forgets that the exchange was missing, since it was just declared.
func (r *refusals) made(exchange string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := scope{about: aboutExchange, exchange: exchange}
	if found := r.of[s]; found != nil && found.err.Code == amqp.NotFound {
		r.drop(s)
	}
}

// suspect puts the messages that the broker's words may be about on probation, before it is known which of them it was.
func (r *refusals) suspect(l *loss) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range l.suspects {
		of := scopeOf(s.exchange, s.key, l.refusal)
		switch {
		case of.about == aboutExchange && mentions(l.refusal, "'"+s.exchange+"'"),
			of.about == aboutKey && mentions(l.refusal, "'"+s.exchange+"'") && mentions(l.refusal, "'"+s.key+"'"):
			r.entry(of, l.refusal, s.size)
		case of.about == aboutSize:
			r.entry(of, l.refusal, l.largest())
		}
	}
}

// largest returns the size of the largest suspect: when the broker speaks of a size, that one is certainly too large.
func (l *loss) largest() int {
	n := 0
	for _, s := range l.suspects {
		n = max(n, s.size)
	}
	return n
}

// entry returns the entry of s and whether it is new, with err as its reason. It is called with mu held.
func (r *refusals) entry(s scope, err *amqp.Error, size int) (*refusal, bool) {
	found, ok := r.of[s]
	if !ok {
		if r.of == nil {
			r.of = make(map[scope]*refusal)
		}
		if len(r.order) >= maxRefusals {
			r.drop(r.order[0])
		}
		found = &refusal{size: size}
		r.of[s] = found
		r.order = append(r.order, s)
	}
	found.err, found.size = err, min(found.size, size)
	return found, !ok
}

func (r *refusals) drop(s scope) {
	delete(r.of, s)
	if i := slices.Index(r.order, s); i >= 0 {
		r.order = slices.Delete(r.order, i, i+1)
	}
}

// scopeOf says what err is about, given that it is about a message to exchange with key.
func scopeOf(exchange, key string, err *amqp.Error) scope {
	switch {
	case err.Code == amqp.NotFound:
		return scope{about: aboutExchange, exchange: exchange}
	case err.Code == amqp.AccessRefused && mentions(err, " to topic "), err.Code == amqp.InternalError: // see ender
		return scope{aboutKey, exchange, key}
	case err.Code == amqp.AccessRefused:
		return scope{about: aboutExchange, exchange: exchange}
	case err.Code == amqp.ContentTooLarge, mentions(err, "max size"), mentions(err, "larger than"):
		return scope{about: aboutSize}
	}
	return scope{aboutRoute, exchange, key}
}

func mentions(err *amqp.Error, text string) bool { return strings.Contains(err.Reason, text) }
