package consume

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
)

var (
	errCancelled = errors.New("the broker cancelled the consumer")
	errGrace     = errors.New("the shutdown's grace period is over")
	errPaused    = errors.New("paused")
	errTooOld    = errors.New("a message was kept as long as the consumer timeout allows")
	errHung      = errors.New("the broker does not answer")
)

// generation is the life of one channel. Its controller, the goroutine in live, is the only one to make synchronous calls on the channel
// (two at once get each other's answers); the worker goroutine, in work, takes and handles. mu is taken by both for a moment and
// never around a call.
type generation struct {
	w    *worker
	loop *Loop
	cfg  *Config
	log  *slog.Logger
	ch   *amqp.Channel
	out  *settler

	closed  chan *amqp.Error
	cancels chan string
	end     context.CancelCauseFunc // of the handlers' context
	over    chan struct{}           // closed: no further spells (shutdown, loss)
	hard    chan struct{}           // closed: grace period and AbandonAfter are over
	idle    chan struct{}           // closed: the worker goroutine has ended
	spells  chan *spell             // to the worker
	ended   chan ending             // from the worker
	grow    chan *spell             // from the worker

	// The controller's.
	queue   string // consumed
	shut    func() // what Open returned
	current *spell // has a consumer at the broker
	want    int    // prefetch of the consumer to start as soon as it fits
	pauses  int    // calls of Pause before the current consumer began
	phase   string // last reported

	mu    sync.Mutex
	gone  bool     // over is closed
	alive []*spell // not yet ended by the worker, in order
	backs []back   // to hand back once the consumer is cancelled

	// The worker's.
	serving *spell
	hand    []item
	probing bool // holds the gate's token
	told    bool // state says "waiting"

	sure sync.Once // see certain
}

// ending is how the worker ended a spell.
type ending struct {
	spell *spell
	why   why
}

type why int

const (
	goOn    why = iota
	drained     // deliveries are closed and handled
	halted      // by spell.stop
	tooOld      // a message reached the bound
)

func newGeneration(w *worker, ch *amqp.Channel, cfg *Config) *generation {
	return &generation{
		w: w, loop: w.loop, cfg: cfg, log: w.loop.log.With("worker", w.name), ch: ch,
		queue:   cfg.Queue,
		out:     newSettler(ch, &w.loop.counters),
		closed:  ch.NotifyClose(make(chan *amqp.Error, 1)),
		cancels: ch.NotifyCancel(make(chan string, 8)),
		over:    make(chan struct{}),
		hard:    make(chan struct{}),
		idle:    make(chan struct{}),
		spells:  make(chan *spell, 2),
		ended:   make(chan ending, 2),
		grow:    make(chan *spell, 2),
	}
}

// live runs the generation to its end and leaves nothing behind but, at a loss, a handler that still runs.
func (g *generation) live(ctx context.Context) error {
	base := context.WithValue(context.WithoutCancel(ctx), markKey{}, &g.loop.mark)
	base, g.end = context.WithCancelCause(base)
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { g.watch(ctx, done) })
	go g.work(base)
	g.loop.unsure.add()
	defer g.certain()

	err := g.control(ctx)

	g.leave()
	if g.shut != nil {
		defer g.shut()
	}
	if n := g.out.kill(); n > 0 {
		g.log.Warn("channel lost with finished messages not yet acknowledged; they come again", "messages", n)
	}
	g.end(err)
	if g.current != nil && !g.current.cancelled {
		g.loop.active.done()
	}
	g.w.adopt(g.idle)
	close(done)
	watch.Wait()
	return err
}

// watch keeps the times of a shutdown, which begins when ctx ends: it must go on while the controller waits for the broker.
func (g *generation) watch(ctx context.Context, done <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-done:
		return
	}
	g.leave()
	if g.cfg.ShutdownTimeout < 0 || !wait(g.cfg.ShutdownTimeout, done) {
		return
	}
	g.end(errGrace)
	if g.cfg.AbandonAfter < 0 || !wait(g.cfg.AbandonAfter, done) {
		return
	}
	close(g.hard)
}

// wait returns false when done came before d was over.
func wait(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}

// leave has the worker start nothing more, in this spell or another.
func (g *generation) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return
	}
	g.gone = true
	close(g.over)
	for _, s := range g.alive {
		s.stop()
	}
}

// control is the controller's circle. It returns why the generation ended; nil after a shutdown, and when its supervisor
// wants it to go on elsewhere: then without a limit to what runs.
func (g *generation) control(ctx context.Context) error {
	leave := report.Leave(ctx)
	if err := g.open(ctx); err != nil {
		select {
		case <-leave: // that was the reason
			return g.finish(ctx, nil)
		default:
			return g.failed(ctx, err)
		}
	}
	look := g.firstLook()
	for {
		pause, changed := g.loop.pause.state()
		if g.cfg.Ordered && g.current != nil && pause.times != g.pauses {
			return g.finish(ctx, errPaused)
		}
		if err := g.adjust(ctx, pause.on); err != nil {
			return g.failed(ctx, err)
		}
		select {
		case <-ctx.Done():
			if g.ch.IsClosed() {
				return g.lost(ctx)
			}
			return g.finish(ctx, nil)
		case <-leave:
			return g.finish(ctx, nil)
		case e := <-g.closed:
			return lossError(e)
		case _, ok := <-g.cancels:
			if ok {
				return g.cancelledByBroker()
			}
			g.cancels = nil // the channel is closed: that is told elsewhere
		case s := <-g.grow:
			if s == g.current {
				g.want = grown(s.prefetch, g.cfg.Prefetch)
			} else {
				g.out.thaw() // withdrawn in between
			}
		case e := <-g.ended:
			if err, over := g.onEnd(ctx, e); over {
				return err
			}
		case <-look:
			next, err := g.look()
			if err != nil {
				return g.failed(ctx, err)
			}
			look = time.After(next)
		case <-changed:
		}
	}
}

// onEnd looks at how the worker ended a spell. over says that err ends the generation.
func (g *generation) onEnd(ctx context.Context, e ending) (err error, over bool) {
	switch {
	case e.why == drained && !e.spell.cancelled:
		if g.ch.IsClosed() {
			return g.lost(ctx), true
		}
		return g.cancelledByBroker(), true
	case e.why == tooOld && g.cfg.Ordered:
		return g.finish(ctx, errTooOld), true
	case e.why == tooOld: // then the rest is as old, or nearly
		err = g.withdraw(false)
		g.want = 0
	default:
		err = g.sweep(nil)
	}
	g.mu.Lock()
	g.alive = g.alive[1:] // they end in order
	g.mu.Unlock()
	if err != nil {
		return g.failed(ctx, err), true
	}
	return nil, false
}
