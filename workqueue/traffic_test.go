package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// fate is what is known of a message, in bits: a resent one may be handled before its publish has returned.
type fate uint8

const (
	sent fate = 1 << iota
	confirmed
	handled
	excused // it was, or may have been, in a queue that the test deleted
	dead    // it stands in the dead-letter queue
	denied  // by the error of its publish it did not arrive: that was not ErrUnknown
)

// ledger has the fate of every message of some publishers, each of which numbers its own from 0. Ten minutes of chaos
// are a few million messages, so it takes a byte for each.
type ledger struct {
	mu        sync.Mutex
	fates     [][]fate
	counts    map[fate]int
	strangers []string // handled, but never sent
}

func newLedger(publishers int) *ledger {
	return &ledger{fates: make([][]fate, publishers), counts: map[fate]int{}}
}

// send enters a publisher's next message.
func (l *ledger) send(publisher int) (id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id = fmt.Sprintf("%d-%d", publisher, len(l.fates[publisher]))
	l.fates[publisher] = append(l.fates[publisher], sent)
	l.counts[sent]++
	return id
}

// note enters what has become of a message.
func (l *ledger) note(id string, f fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := l.entry(id)
	if entry == nil {
		l.strangers = append(l.strangers, id)
		return
	}
	if *entry&f == 0 {
		l.counts[f]++
	}
	*entry |= f
}

// entry returns the message's fate, nil when it was never sent.
func (l *ledger) entry(id string) *fate {
	publisher, number, _ := strings.Cut(id, "-")
	p, err1 := strconv.Atoi(publisher)
	n, err2 := strconv.Atoi(number)
	if err1 != nil || err2 != nil || p < 0 || p >= len(l.fates) || n < 0 || n >= len(l.fates[p]) {
		return nil
	}
	return &l.fates[p][n]
}

// count is the number of messages of which f is known.
func (l *ledger) count(f fate) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[f]
}

// each calls fn with every message.
func (l *ledger) each(fn func(id func() string, f *fate)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.fates {
		for n := range l.fates[p] {
			fn(func() string { return fmt.Sprintf("%d-%d", p, n) }, &l.fates[p][n])
		}
	}
}

// missing are the messages whose publish returned nil and of which nothing else is known.
func (l *ledger) missing() (ids []string) {
	l.each(func(id func() string, f *fate) {
		if *f&confirmed != 0 && *f&(handled|excused|dead) == 0 {
			ids = append(ids, id())
		}
	})
	return ids
}

// wronglyDenied are the messages that were handled although their publish said that they had not arrived.
func (l *ledger) wronglyDenied() (ids []string) {
	l.each(func(id func() string, f *fate) {
		if *f&denied != 0 && *f&(handled|dead) != 0 {
			ids = append(ids, id())
		}
	})
	return ids
}

// unconfirmed is the number of a publisher's messages whose publish did not return nil.
func (l *ledger) unconfirmed(publisher int) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.fates[publisher] {
		if f&confirmed == 0 {
			n++
		}
	}
	return n
}

// traffic is publishers that send one message after the other until they are stopped, and the ledger of it.
type traffic struct {
	*ledger
	t       *testing.T
	stopped chan struct{}
	running sync.WaitGroup
	open    sync.RWMutex // read-locked during each publish, so that a writer holds all of them up
	gone    atomic.Bool  // the queue may be missing, so that messages may be returned

	mu      sync.Mutex
	errs    map[string]int // by their kind
	strange []string       // errors that have no type, or not one that was to be expected
	overrun time.Duration  // the longest that a publish outlived its context
	stalled time.Duration  // the longest that this process did not run, as far as it can tell
	watches sync.Once
}

func newTraffic(t *testing.T, publishers int) *traffic {
	f := &traffic{ledger: newLedger(publishers), t: t, stopped: make(chan struct{}), errs: map[string]int{}}
	t.Cleanup(f.stop)
	return f
}

// publisher starts the publisher with that number. Each of its messages gets a context of its own, for as long as deadline
// says.
func (f *traffic) publisher(number int, p *workqueue.Producer, deadline func() time.Duration) {
	f.watches.Do(func() { f.running.Go(f.watch) })
	f.running.Go(func() {
		for {
			select {
			case <-f.stopped:
				return
			default:
				_ = f.one(number, p, deadline())
			}
		}
	})
}

// watch notes for how long the machine lets this process wait, and with it each publish whose context ends just then.
func (f *traffic) watch() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-f.stopped:
			return
		case <-tick.C:
			now := time.Now()
			f.mu.Lock()
			f.stalled = max(f.stalled, now.Sub(last))
			f.mu.Unlock()
			last = now
		}
	}
}

// one publishes one message.
func (f *traffic) one(number int, p *workqueue.Producer, deadline time.Duration) error {
	f.open.RLock()
	defer f.open.RUnlock()
	gone := f.gone.Load()
	id := f.send(number)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	end, _ := ctx.Deadline()
	err := p.Publish(ctx, amqp.Publishing{MessageId: id})
	over := time.Since(end)
	switch {
	case err == nil:
		f.note(id, confirmed)
	case !errors.Is(err, reconnect.ErrUnknown):
		f.note(id, denied)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.overrun = max(f.overrun, over)
	kind, typed := kindOf(err)
	f.errs[kind]++
	if missing := errors.As(err, new(*reconnect.ReturnedError)); !typed || missing && !gone && !f.gone.Load() {
		f.strange = append(f.strange, err.Error())
	}
	return err
}

// kindOf names the outcome of a publish. typed says that it is one of those that Publish documents.
func kindOf(err error) (kind string, typed bool) {
	if err == nil {
		return "confirmed", true
	}
	var returned *reconnect.ReturnedError
	var kinds []string
	for _, k := range []struct {
		name string
		is   bool
	}{
		{"returned", errors.As(err, &returned)}, {"refused", errors.Is(err, reconnect.ErrRefused)},
		{"unknown", errors.Is(err, reconnect.ErrUnknown)}, {"blocked", errors.Is(err, reconnect.ErrBlocked)},
		{"deadline", errors.Is(err, context.DeadlineExceeded)},
	} {
		if k.is {
			kinds = append(kinds, k.name)
		}
	}
	return strings.Join(kinds, "+"), len(kinds) > 0
}

// kind is how often a publish ended so.
func (f *traffic) kind(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errs[kind]
}

// paused waits for the publishes in progress, and holds the publishers up during fn.
func (f *traffic) paused(fn func()) {
	f.open.Lock()
	defer f.open.Unlock()
	fn()
}

// stop ends the publishers and waits for them.
func (f *traffic) stop() {
	select {
	case <-f.stopped:
	default:
		close(f.stopped)
	}
	f.running.Wait()
}

// overrunMargin is what a publish may take beyond the end of its context: the time a busy machine needs to notice, beside that in
// which nothing of this process ran.
const overrunMargin = time.Second

// verify fails the test unless every message that was confirmed is accounted for, none was handled that was never sent
// or, by the error of its publish, had not arrived,
// every error was one a caller can tell apart and none said that there was no queue while there was one, and no publish outlived its context.
func (f *traffic) verify() {
	f.t.Helper()
	missing := f.missing()
	require.Empty(f.t, missing[:min(len(missing), 20)], "%d of %d confirmed messages were neither handled nor dead-lettered", len(missing), f.count(confirmed))
	require.Empty(f.t, f.strangers, "handled, but never sent")
	require.Empty(f.t, f.wronglyDenied(), "handled, although their publish said that they had not arrived")
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Empty(f.t, f.strange, "errors that should not be")
	require.Less(f.t, f.overrun, overrunMargin+f.stalled, "a publish outlived its context by %v; the longest pause of this process was %v", f.overrun, f.stalled)
	f.t.Logf("sent %d, handled %d, publishes %v; ended at most %v after their contexts, in a process that paused for at most %v",
		f.count(sent), f.count(handled), f.errs, f.overrun, f.stalled)
}
