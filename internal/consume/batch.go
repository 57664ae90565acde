package consume

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/telemetry"
)

// attemptBatch is attempt for what a batch worker has in hand: those not handled yet are handed over together, then every
// message is settled in order. What stays is the barrier of the prefix: later ones that are done are acknowledged one by one. While the
// gate is narrow only the first is handed over, the others just stay.
func (g *generation) attemptBatch(base handlerContext, deadline time.Time) (passed bool, stays error) {
	limit := len(g.hand)
	if g.loop.gate.narrow() {
		limit = 1
	}
	within, tale := base, telemetry.Processing{}
	ds := g.untried(limit)
	if len(ds) > 0 {
		within, tale = g.loop.tell.ProcessBatch(base, ds)
	}
	ctx := newCallCtx(within, deadline)
	defer ctx.end()
	kind, err := errorTypeGoexit, error(nil)
	defer func() { tale.End(kind, err) }()
	var errs []error
	if len(ds) > 0 {
		err = g.guard(func() error { return g.cfg.Batch(ctx, ds) })
		errs = splitBatch(err, len(ds))
	}
	if kind = ""; tale.Told() {
		kind = errorType(ctx, err)
		tale.Returned(kind)
	}
	g.out.hold(0)
	kept := g.hand[:0]
	for i, it := range g.hand {
		if i < limit {
			var err error
			if it.cause == nil {
				err, errs = errs[0], errs[1:]
			}
			ok, err := g.settle(ctx, base, &it, err)
			passed = passed || ok
			if err == nil {
				continue
			}
			if stays == nil || longer(err, stays) {
				stays = err
			}
		}
		if len(kept) == 0 {
			g.out.hold(it.d.DeliveryTag)
		}
		kept = append(kept, it)
	}
	clear(g.hand[len(kept):])
	g.hand = kept
	return passed, stays
}

// longer reports whether a asks for a longer wait than b.
func longer(a, b error) bool {
	da, _ := retryDelay(a, 1)
	db, _ := retryDelay(b, 1)
	return da > db
}

// untried returns what of the first limit was not handled yet.
func (g *generation) untried(limit int) []amqp.Delivery {
	ds := make([]amqp.Delivery, 0, limit) // the handler's: it may keep or sort it
	for i := range limit {
		if g.hand[i].cause == nil {
			ds = append(ds, g.hand[i].d)
		}
	}
	return ds
}
