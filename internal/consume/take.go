package consume

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// item is a message the worker holds.
type item struct {
	d     amqp.Delivery
	at    time.Time // when it came, if Config.Stamp asks for it
	tried bool      // a handler has begun with it, and did not say "not now"
	cause error     // not nil: it failed, and is to be dead-lettered
}

// back is a message to be handed back; fresh says that no handler has begun with it.
type back struct {
	d     amqp.Delivery
	fresh bool
}

// work is the worker goroutine: it serves one spell after the other.
func (g *generation) work(base handlerContext) {
	clean := false
	defer func() {
		if clean {
			close(g.idle)
			return
		}
		// A handler called runtime.Goexit: nothing stops this goroutine from ending, so the next one goes on.
		g.buryHand()
		go g.work(base)
	}()
	for g.serving != nil || g.next() {
		e := ending{g.serving, g.serve(base, g.serving)}
		g.serving = nil
		g.out.flush()
		select {
		case g.ended <- e:
		case <-g.over:
		}
	}
	clean = true
}

// next waits for a spell. It returns false when there will be none.
func (g *generation) next() bool {
	select {
	case <-g.over:
		return false
	default:
	}
	select {
	case s := <-g.spells:
		g.serving = s
		g.out.begin(s.prefetch, s.since)
		return true
	case <-g.over:
		return false
	}
}

// serve takes and handles until the spell ends.
func (g *generation) serve(base handlerContext, s *spell) why {
	for {
		since, end := g.take(s)
		if end != goOn {
			return end
		}
		if end := g.handle(base, s, since); end != goOn {
			return end
		}
	}
}

// take fills the hand with what is to be handled together. since is the earliest time the first of it can have been delivered.
func (g *generation) take(s *spell) (since time.Time, end why) {
	d, end := g.receive(s, nil)
	if end != goOn {
		return since, end
	}
	since = g.keep(d)
	if g.cfg.Batch == nil {
		return since, goOn
	}
	return since, g.collect(s)
}

// collect completes a batch whose first message is in hand. A message that is too large is a batch of its own, as are all while the
// gate is narrow.
func (g *generation) collect(s *spell) why {
	full := min(g.cfg.BatchSize, s.prefetch)
	if g.loop.gate.narrow() {
		full = 1
	}
	if len(g.hand) >= full {
		return goOn
	}
	t := time.NewTimer(g.cfg.BatchWait)
	defer t.Stop()
	for len(g.hand) < full {
		d, end := g.receive(s, t.C)
		switch end {
		case goOn:
			g.keep(d)
		case halted:
			return g.giveBack(halted)
		default: // time is over, or nothing more comes: the next receive says so again
			return goOn
		}
	}
	return goOn
}

// keep puts d into the hand.
func (g *generation) keep(d amqp.Delivery) (since time.Time) {
	it := item{d: d}
	if g.cfg.Stamp {
		it.at = stampOf(d)
	}
	it.d.Acknowledger = &g.loop.hands
	if n := len(d.Body); g.cfg.MaxBody > 0 && n > g.cfg.MaxBody {
		it.cause = &tooLarge{n, g.cfg.MaxBody}
	}
	g.hand = append(g.hand, it)
	return g.out.take()
}

// timeUp is what receive returns when wait ended it.
const timeUp why = -1

// receive returns the next delivery. Before it waits for one it tells the settler.
func (g *generation) receive(s *spell, wait <-chan time.Time) (d amqp.Delivery, end why) {
	var ok bool
	select {
	case d, ok = <-s.deliveries:
		return d, g.received(s, d, ok)
	default:
		g.out.idle()
	}
	select {
	case d, ok = <-s.deliveries:
		return d, g.received(s, d, ok)
	case <-s.halt:
		return d, halted
	case <-wait:
		return d, timeUp
	}
}

func (g *generation) received(s *spell, d amqp.Delivery, ok bool) why {
	switch {
	case !ok:
		return drained
	case s.halted.Load():
		g.leaveBack(back{d, true})
		return halted
	default:
		return goOn
	}
}

// giveBack leaves what is in hand to the controller, to hand it back once the consumer is cancelled, and ends the spell.
func (g *generation) giveBack(end why) why {
	for i := range g.hand {
		g.leaveBack(back{g.hand[i].d, !g.hand[i].tried})
	}
	g.drop()
	return end
}

func (g *generation) leaveBack(b back) {
	g.mu.Lock()
	g.backs = append(g.backs, b)
	g.mu.Unlock()
}

// drop empties the hand and forgets the bodies.
func (g *generation) drop() {
	clear(g.hand)
	g.hand = g.hand[:0]
}
