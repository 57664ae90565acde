package consistenthash

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/reconnect"
)

// partition is what one instance does with one of the queues: it waits in line to be its active consumer, handles while it is, and
// goes back to the end of the line when it is told to.
type partition struct {
	conn     *reconnect.Conn
	topology reconnect.Topology
	attempts attempts
	loop     *consume.Loop

	mu      sync.Mutex // taken before that of attempts
	leaving bool       // the channel is being given back
	paused  bool       // by the user
}

// isActive reports whether this instance is the active consumer, as far as can be known: the broker does not tell a client, but it
// gives messages to the active consumer only, and with equal priorities that remains so until its channel is closed. Who has received
// nothing on this channel yet may be active too, on an empty queue; that is no load.
func (p *partition) isActive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	began, _ := p.attempts.state()
	return began && !p.leaving
}

// giveBack hands the partition to the next in line: the message in hand is finished, then the channel is closed, and another one
// consumes from the end of the line. It does not wait. It refuses, and returns false, while a message waits to be tried again: that
// would begin anew elsewhere, and be one delivery nearer to its limit.
func (p *partition) giveBack() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	began, waiting := p.attempts.state()
	if !began || waiting || p.leaving || p.paused {
		return false
	}
	p.leaving = true
	p.loop.Pause() // an ordered loop that is paused closes its channel
	return true
}

// setPaused is the user's Pause and Resume.
func (p *partition) setPaused(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = on
	p.apply()
}

func (p *partition) apply() {
	if p.paused || p.leaving {
		p.loop.Pause()
	} else {
		p.loop.Resume()
	}
}

// supervise is the loop's way to its channels. Giving a partition back is no loss, which would be logged and waited after: it ends
// one supervision and begins the next.
func (p *partition) supervise(ctx context.Context, name string, fn func(context.Context, *amqp.Channel) error) error {
	for {
		turn, end := context.WithCancel(ctx)
		given := false
		err := p.conn.Supervise(turn, name, p.topology, func(onChannel context.Context, ch *amqp.Channel) error {
			p.attempts.reset()
			err := fn(onChannel, ch)
			if given = p.left(); given && ctx.Err() == nil { // onChannel has ended with the channel
				end()
				return nil
			}
			return err
		})
		end()
		if !given || err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// left ends a giveBack, if there was one, when the channel is gone.
func (p *partition) left() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.leaving
	p.leaving = false
	p.attempts.reset()
	p.apply()
	return was
}
