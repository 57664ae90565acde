package consume

import (
	"fmt"
	"time"

	"github.com/warrenmq/warren/internal/report"
)

// admit waits until the handler may be called: by the rate limit, and by the gate. It returns something other than goOn when
// the spell is halted, or the message has been kept too long, first.
func (g *generation) admit(base handlerContext, s *spell, bound time.Time) why {
	if s.halted.Load() {
		return halted
	}
	if !bound.IsZero() && !time.Now().Before(bound) {
		return tooOld
	}
	for {
		if g.loop.gate.narrow() && !g.probing {
			if end := g.queueUp(base, s, bound); end != goOn {
				return end
			}
		}
		// After the gate, since all who wait there go on at the same moment.
		start, end := g.await(s, bound)
		if end == goOn && (g.probing || !g.loop.gate.narrow()) {
			return goOn
		}
		g.loop.limiter.cancel(start)
		if end != goOn {
			g.stepBack()
			return end
		}
	}
}

// await waits for the next start that the rate allows.
func (g *generation) await(s *spell, bound time.Time) (start time.Time, end why) {
	start, d := g.loop.limiter.reserve(time.Now())
	if d <= 0 {
		return start, goOn
	}
	g.out.flush()
	return start, g.sleep(s, d, bound, nil)
}

// stepBack gives the gate's token back, if it is held.
func (g *generation) stepBack() {
	if g.probing {
		g.probing = false
		g.loop.gate.leave()
	}
}

// queueUp waits for the narrow gate.
func (g *generation) queueUp(base handlerContext, s *spell, bound time.Time) why {
	g.out.flush()
	if !g.told {
		g.tell(base, s, "others were told \"not now\": one message at a time until one succeeds")
	}
	var late <-chan time.Time
	if !bound.IsZero() {
		t := time.NewTimer(time.Until(bound))
		defer t.Stop()
		late = t.C
	}
	held, ok := g.loop.gate.enter(s.halt, late)
	g.probing = held
	switch {
	case ok:
		return goOn
	case s.halted.Load():
		return halted
	default:
		return tooOld
	}
}

// answer gives the gate the answer of the call that was let through. It returns how many refusals there were in a row, if this was
// one.
func (g *generation) answer(passed bool, stays error) (refused int) {
	gate := g.loop.gate
	switch {
	case passed:
		if gate.passed() {
			g.log.Info("messages are handled again, by all workers")
		}
	case isNotNow(stays):
		if refused = gate.refused(); refused == narrowAfter {
			g.log.Warn("told \"not now\" several times in a row: one message at a time until one succeeds", "error", stays)
		}
	}
	g.stepBack()
	return refused
}

// wait waits with what is in hand, which was told "not now" for the try-th time by err. It ends early when the spell is halted, and
// when the gate opens again, unless err named a time. At bound the message is kept no longer.
func (g *generation) wait(base handlerContext, s *spell, bound time.Time, err error, try, refused int) why {
	if !isNotNow(err) {
		return halted // its context was ended by the shutdown
	}
	d, named := retryDelay(err, try)
	reason := fmt.Sprintf("not now (try %d, again in %v): %v", try, d, err)
	if refused >= narrowAfter {
		reason = fmt.Sprintf("not now, %d times in a row: one message at a time until one succeeds (again in %v): %v", refused, d, err)
	}
	g.out.flush()
	g.tell(base, s, reason)
	var wake <-chan struct{}
	if !named {
		wake = g.loop.gate.wide()
	}
	began := time.Now()
	defer func() { g.loop.tell.NotNow(time.Since(began)) }()
	return g.sleep(s, d, bound, wake)
}

// sleep waits for d, for wake, or for one of the ends.
func (g *generation) sleep(s *spell, d time.Duration, bound time.Time, wake <-chan struct{}) why {
	late := false
	if !bound.IsZero() {
		if left := time.Until(bound); left < d {
			d, late = left, true
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		if late {
			return tooOld
		}
	case <-wake:
	case <-s.halt:
		return halted
	}
	return goOn
}

// tell shows that this worker waits, and why.
func (g *generation) tell(base handlerContext, s *spell, reason string) {
	if s.halted.Load() {
		return
	}
	g.told = true
	report.State(base, report.Waiting, reason)
}

// waitsNoMore shows that this worker goes on, after a message succeeded.
func (g *generation) waitsNoMore(base handlerContext, s *spell) {
	if g.told && !s.halted.Load() {
		g.told = false
		report.State(base, report.Consuming, "")
	}
}
