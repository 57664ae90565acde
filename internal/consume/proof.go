package consume

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// pipelined is how many settlements may be under way when a channel is closed, and how many messages can be returned at once and
	// stay in order. Of what a channel has sent to a quorum queue at most 32 commands wait to be carried out; further ones the broker
	// keeps aside, and forgets with the channel, although it answers the close as if all were well. A few are left for those.
	pipelined = 28
	// soon is how long what was not started waits for the handler that runs, so that it can be handed back with few commands.
	soon = 50 * time.Millisecond
	// others is how long a message that came with a proof is kept at most, so that no neighbour's proof takes it too.
	others = 30 * time.Second
)

// prove makes sure that the queue has carried out every settlement, where a close of the channel would not say so.
//
// Of all that a quorum queue can be asked, only the start of a consumer, its end and basic.get wait until it has done what it was told before;
// an end is answered earlier than that, but not what is asked next. Mostly the end of this channel's own consumer is proof of all
// but a few settlements, and these are certain to arrive. Else (a batch with many different answers) a consumer is begun and ended here. On an
// ordered queue it gets nothing: this channel's own is before it in the line. Elsewhere it may get one message,
// which goes back once the other workers of the loop have their proof, or each of those would return the same one.
func (g *generation) prove(ctx context.Context) error {
	if !g.cfg.Quorum || g.cfg.Prefetch <= pipelined || g.out.underWay() <= pipelined {
		return nil
	}
	sent := g.out.sentSoFar()
	if !g.cfg.Ordered {
		g.loop.active.add()
	}
	rest, err := call(g, g.visit)
	if !g.cfg.Ordered {
		g.loop.active.done()
	}
	if err != nil {
		return err
	}
	g.out.proved(sent)
	if len(rest) > 0 && !g.cfg.Ordered && ctx.Err() != nil {
		g.certain()
		t := time.NewTimer(others)
		defer t.Stop()
		g.loop.unsure.atMost(0, g.hard, t.C)
	}
	return g.sweep(rest)
}

// visit begins a consumer, ends it, and returns what it got.
func (g *generation) visit() (got []back, err error) {
	tag := newTag(g.w.name)
	var deliveries <-chan amqp.Delivery
	for _, step := range []func() error{
		func() error { return g.ch.Qos(1, 0, false) },
		func() error {
			deliveries, err = g.ch.Consume(g.queue, tag, false, false, false, false, nil)
			return err
		},
		g.inStep,
		func() error { return g.ch.Cancel(tag, false) },
		g.inStep,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	for d := range deliveries {
		got = append(got, back{d, true})
	}
	return got, nil
}

// certain notes, once, that this generation takes no message for a proof any more.
func (g *generation) certain() { g.sure.Do(g.loop.unsure.done) }

// awaitWorker waits a moment for the worker of a generation that ends.
func (g *generation) awaitWorker() {
	select {
	case <-g.over:
	default:
		return
	}
	t := time.NewTimer(soon)
	defer t.Stop()
	select {
	case <-g.idle:
	case <-t.C:
	case <-g.hard:
	}
}

// together is how many messages may be handed back with one command, which covers all that is unsettled before them: that must not
// be what the worker has in hand.
func (g *generation) together() int {
	select {
	case <-g.idle:
		g.out.thaw() // what is finished is acknowledged
		return pipelined
	default:
		return 1
	}
}
