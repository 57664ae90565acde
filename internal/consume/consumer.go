package consume

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
)

// adjust does what is to be done to get from what is to what is wanted.
func (g *generation) adjust(ctx context.Context, paused bool) error {
	switch {
	case paused && g.phase == report.Paused:
		return nil
	case paused:
		g.want = 0
		if err := g.withdraw(true); err != nil {
			return err
		}
		g.report(ctx, report.Paused, "")
		return nil
	case g.current == nil && g.want == 0:
		g.want = g.cfg.first()
	case g.current != nil && g.want > 0:
		if err := g.cancel(g.current); err != nil {
			return err
		}
		g.current = nil
	}
	if g.want == 0 || !g.fits(g.want) {
		return nil
	}
	return g.consume(ctx)
}

// fits reports whether a consumer with this prefetch may start beside what earlier ones of this channel may still hold.
func (g *generation) fits(prefetch int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.alive) == cap(g.spells) {
		return false
	}
	for _, s := range g.alive {
		prefetch += s.prefetch
	}
	return prefetch <= g.cfg.Prefetch
}

// consume starts a consumer with the prefetch wanted.
func (g *generation) consume(ctx context.Context) error {
	s := newSpell(newTag(g.w.name), g.want)
	g.loop.active.add()
	// After the add, so that a neighbour which is stopping and saw no active consumer can rely on none beginning.
	pause, _ := g.loop.pause.state()
	if pause.on || ctx.Err() != nil {
		g.loop.active.done()
		return nil
	}
	g.pauses = pause.times
	sent := g.out.sentSoFar()
	deliveries, err := call(g, func() (<-chan amqp.Delivery, error) {
		if err := g.ch.Qos(s.prefetch, 0, false); err != nil {
			return nil, err
		}
		deliveries, err := g.ch.Consume(g.queue, s.tag, false, false, false, false, nil)
		if err == nil {
			err = g.inStep()
		}
		return deliveries, err
	})
	if err != nil {
		g.loop.active.done()
		return fmt.Errorf("consume from %q: %w", g.queue, err)
	}
	g.out.proved(sent)
	s.deliveries = deliveries
	if g.cfg.Stamp && s.prefetch > 1 {
		s.deliveries = stamped(deliveries, s.prefetch)
	}
	g.current, g.want = s, 0
	g.mu.Lock()
	g.alive = append(g.alive, s)
	if g.gone {
		s.stop()
	}
	g.mu.Unlock()
	// Said before anything is handled: a handler that asks for a wait at once says so after it.
	g.loop.consumes(g.w.index)
	g.report(ctx, report.Consuming, "")
	g.spells <- s // room for both that can be alive
	return nil
}

// cancel ends s's consumer at the broker. What was delivered to it before can still be taken, up to the close of its deliveries.
func (g *generation) cancel(s *spell) error {
	sent := g.out.sentSoFar()
	_, err := call(g, func() (struct{}, error) {
		err := g.ch.Cancel(s.tag, false)
		if err == nil {
			err = g.inStep()
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	g.out.proved(sent)
	s.cancelled = true
	g.loop.active.done()
	g.out.thaw()
	return nil
}

// inStep makes sure that the broker has answered what was asked before once. RabbitMQ 3.10 answers a consume or a cancel twice when
// the queue's process ends meanwhile, as when the queue is deleted; the driver's one reader would wait with the second answer, and all
// channels of the connection with it, until somebody asks for something on this channel again. Here it comes as the wrong
// answer, an error. The prefetch that is set is that of no consumer: each start of one sets its own before.
func (g *generation) inStep() error { return g.ch.Qos(g.cfg.Prefetch, 0, false) }

// report tells the supervisor a phase that is not the one it knows.
func (g *generation) report(ctx context.Context, phase, reason string) {
	if g.phase != phase {
		g.phase = phase
		report.State(ctx, phase, reason)
	}
}
