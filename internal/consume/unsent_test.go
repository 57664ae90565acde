package consume

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever came between, what is finished below nothing that waits is acknowledged within flushAfter, unless the settler is
// frozen; and at once after that.
func TestNothingFinishedStaysUnsent(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 9))
			b := newFakeBroker()
			s := newSettler(b, new(counters))
			s.begin(1+rnd.IntN(40), time.Now())
			var next, held uint64
			frozen := false
			finished := map[uint64]time.Time{}
			take := func() uint64 { next++; b.deliver(next); s.take(); return next }
			for step := range 200 {
				switch rnd.IntN(10) {
				case 0, 1, 2, 3:
					tag := take()
					finished[tag] = time.Now()
					require.True(t, s.done(tag))
				case 4:
					require.True(t, s.reject(take()))
				case 5:
					s.idle()
				case 6:
					if held == 0 {
						held = take()
						s.hold(held)
						break
					}
					s.hold(0)
					back := held
					finished[back], held = time.Now(), 0
					require.True(t, s.done(back))
				case 7:
					if frozen = !frozen; frozen {
						s.freeze(func() {})
					} else {
						s.thaw()
					}
				default:
					time.Sleep(time.Duration(rnd.IntN(1500)) * time.Microsecond)
					synctest.Wait()
				}
				for tag, at := range finished {
					if frozen {
						break
					}
					if !b.has(tag) {
						delete(finished, tag)
						continue
					}
					require.LessOrEqual(t, time.Since(at), flushAfter, "seed %d step %d: %d is not acknowledged", seed, step, tag)
				}
			}
			s.thaw()
			s.kill()
		})
	}
}
