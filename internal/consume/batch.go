package consume

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
)

// attemptBatch is attempt for what a batch worker has in hand: those not handled yet are handed over together, then every
// message is settled in order. What stays is the barrier of the prefix: later ones that are done are acknowledged one by one. While the
// gate is narrow only the first is handed over, the others just stay.
func (g *generation) attemptBatch(ctx context.Context, base handlerContext) (passed bool, stays error) {
	limit := len(g.hand)
	if g.loop.gate.narrow() {
		limit = 1
	}
	errs := g.callBatch(ctx, limit)
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

// callBatch calls the handler with what of the first limit was not handled yet, and returns an error for each of these.
func (g *generation) callBatch(ctx context.Context, limit int) []error {
	ds := make([]amqp.Delivery, 0, limit) // the handler's: it may keep or sort it
	for i := range limit {
		if g.hand[i].cause == nil {
			ds = append(ds, g.hand[i].d)
		}
	}
	n := len(ds)
	if n == 0 {
		return nil
	}
	err := g.guard(func() error { return g.cfg.Batch(ctx, ds) })
	return splitBatch(err, n)
}
