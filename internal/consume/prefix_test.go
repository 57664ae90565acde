package consume

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeBroker is one channel as the broker sees it: it knows which tags are open and refuses what it would answer with 406.
type fakeBroker struct {
	mu    sync.Mutex
	open  map[uint64]bool
	log   []string
	acked []uint64
	bad   []uint64
	gone  bool
	at    []time.Time
}

func newFakeBroker() *fakeBroker { return &fakeBroker{open: map[uint64]bool{}} }

func (b *fakeBroker) deliver(tag uint64) { b.mu.Lock(); b.open[tag] = true; b.mu.Unlock() }

func (b *fakeBroker) has(tag uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open[tag]
}

func (b *fakeBroker) settle(kind string, tag uint64, multiple bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return errors.New("closed")
	}
	var tags []uint64
	for t := range b.open {
		if t == tag || multiple && t < tag {
			tags = append(tags, t)
		}
	}
	if !b.open[tag] {
		b.bad = append(b.bad, tag)
	}
	slices.Sort(tags)
	for _, t := range tags {
		delete(b.open, t)
	}
	b.log = append(b.log, kind)
	b.at = append(b.at, time.Now())
	if kind == "ack" {
		b.acked = append(b.acked, tags...)
	}
	return nil
}

func (b *fakeBroker) Ack(tag uint64, multiple bool) error     { return b.settle("ack", tag, multiple) }
func (b *fakeBroker) Nack(tag uint64, multiple, _ bool) error { return b.settle("nack", tag, multiple) }
func (b *fakeBroker) Reject(tag uint64, _ bool) error         { return b.settle("reject", tag, false) }

// Whatever the order of finishing, failing, waiting and flushing: each message is settled once, none that is open is touched, and
// all that is finished is acknowledged in the end.
func FuzzSettle(f *testing.F) {
	f.Add(uint8(1), []byte{0, 0, 0, 1, 0})
	f.Add(uint8(100), []byte{0, 0, 2, 0, 3, 0, 0, 4, 1, 5, 0})
	f.Add(uint8(8), []byte{2, 2, 0, 1, 4, 0, 4, 2, 0, 0, 0, 0, 0, 3, 6, 0, 0, 7})
	f.Fuzz(func(t *testing.T, prefetch uint8, ops []byte) {
		b, count := newFakeBroker(), new(counters)
		s := newSettler(b, count)
		s.begin(int(prefetch)+1, time.Now())
		var next uint64
		var held []uint64 // told "not now", oldest first
		done, dead := map[uint64]bool{}, map[uint64]bool{}
		take := func() uint64 { next++; b.deliver(next); s.take(); return next }
		release := func() {
			tag := held[0]
			held = held[1:]
			s.hold(0)
			done[tag] = true
			s.done(tag)
			if len(held) > 0 {
				s.hold(held[0])
			}
		}
		for _, op := range ops {
			switch op % 8 {
			case 0:
				tag := take()
				done[tag] = true
				s.done(tag)
			case 1:
				tag := take()
				dead[tag] = true
				s.reject(tag)
			case 2:
				if held = append(held, take()); len(held) == 1 {
					s.hold(held[0])
				}
			case 3:
				s.flush()
			case 4:
				if len(held) > 0 {
					release()
				}
			case 5:
				s.idle()
			case 6:
				s.freeze(func() {})
			case 7:
				s.thaw()
			}
			for _, tag := range held {
				require.True(t, b.has(tag), "a waiting message was settled")
			}
		}
		s.thaw()
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(t, b.bad, "unknown tags")
		require.Len(t, b.acked, len(done))
		for _, tag := range b.acked {
			require.True(t, done[tag])
		}
		require.Len(t, b.open, len(held))
		require.Zero(t, s.kill())
		require.Zero(t, count.stale.Load())
	})
}

func TestAcksGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		s := newSettler(b, new(counters))
		s.begin(100, time.Now())
		finish := func(from, to uint64) {
			for tag := from; tag <= to; tag++ {
				b.deliver(tag)
				s.take()
				s.done(tag)
			}
		}
		finish(1, 24)
		require.Empty(t, b.log)
		finish(25, 25)
		require.Equal(t, []string{"ack"}, b.log, "a quarter of the prefetch")
		began := time.Now()
		finish(26, 26)
		time.Sleep(flushAfter / 2)
		finish(27, 27)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"ack", "ack"}, b.log)
		require.Equal(t, flushAfter, b.at[1].Sub(began), "counted from the first")
		finish(28, 28)
		s.idle()
		require.Len(t, b.log, 3, "nothing more at hand")
		finish(29, 29)
		b.deliver(30)
		s.take()
		s.reject(30)
		require.Equal(t, []string{"ack", "ack", "ack", "ack", "reject"}, b.log)
		require.Len(t, b.acked, 29)
		require.Empty(t, b.bad)
		s.begin(7, time.Now())
		finish(31, 31)
		require.Len(t, b.log, 6, "a quarter of 7 is one")
	})
}

func TestNothingIsSentAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, count := newFakeBroker(), new(counters)
		s := newSettler(b, count)
		s.begin(100, time.Now())
		for tag := uint64(1); tag <= 4; tag++ {
			b.deliver(tag)
			s.take()
		}
		require.True(t, s.done(1))
		require.True(t, s.done(2))
		require.Equal(t, 2, s.kill())
		require.False(t, s.done(3))
		require.False(t, s.reject(4))
		require.False(t, s.back(4, 1))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, b.log)
		require.EqualValues(t, 5, count.stale.Load())
	})
	t.Run("the driver says so first", func(t *testing.T) {
		b, count := newFakeBroker(), new(counters)
		s := newSettler(b, count)
		b.gone = true
		require.False(t, s.done(1))
		require.True(t, s.dead())
		require.EqualValues(t, 1, count.stale.Load())
	})
}

// While frozen nothing is acknowledged, until the window is full or a while has passed.
func TestFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker()
		s := newSettler(b, new(counters))
		s.begin(4, time.Now())
		asked := 0
		for tag := uint64(1); tag <= 5; tag++ {
			require.Equal(t, 0, asked)
			b.deliver(tag)
			s.take()
			if tag == 2 {
				s.freeze(func() { asked++ })
			}
			s.done(tag)
		}
		require.Equal(t, 1, asked, "full with 2, 3, 4, 5")
		require.Equal(t, []uint64{1}, b.acked)
		s.thaw()
		require.Equal(t, []uint64{1, 2, 3, 4, 5}, b.acked)

		s.begin(4, time.Now())
		began := time.Now()
		quiet := make(chan time.Duration, 1)
		b.deliver(6)
		s.take()
		s.freeze(func() { quiet <- time.Since(began) })
		s.done(6)
		s.idle()
		require.Equal(t, quietAfter, <-quiet)
		require.Len(t, b.acked, 5)
		s.thaw()
		require.Len(t, b.acked, 6)
	})
}
