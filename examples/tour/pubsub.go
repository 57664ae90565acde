package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

// newsroom is the chapter on publish and subscribe.
type newsroom struct {
	*tour
	cable     *cable
	press     *reconnect.Conn // which is not cut
	audience  *audience       // behind the cable
	event     pubsub.Exchange
	publisher *pubsub.Publisher

	mu   sync.Mutex
	gaps []time.Duration
}

func publishSubscribe(ctx context.Context, t *tour) (err error) {
	n := &newsroom{tour: t, cable: new(cable), event: pubsub.Exchange{Name: t.name("news")}}
	n.press, err = reconnect.Dial(ctx, t.url, reconnect.Config{Name: t.name("press"), Logger: t.logger()})
	if err != nil {
		return err
	}
	defer n.press.Close(context.Background())
	readers, err := reconnect.Dial(ctx, t.url, reconnect.Config{Name: t.name("readers"), DialContext: n.cable.dial, Logger: t.logger()})
	if err != nil {
		return err
	}
	defer readers.Close(context.Background())
	n.audience = newAudience(readers)
	defer func() { err = errors.Join(err, n.audience.close()) }()
	if n.publisher, err = pubsub.NewPublisher(n.press, n.event, reconnect.PublisherConfig{}); err != nil {
		return err
	}
	return errors.Join(n.copies(ctx), n.cut(ctx))
}

// news sends messages from to to-1, at a steady pace.
func (n *newsroom) news(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		if err := n.publisher.Publish(ctx, amqp.Publishing{MessageId: strconv.Itoa(i)}); err != nil {
			return err
		}
		pause(ctx, 2*time.Millisecond)
	}
	return nil
}

func (n *newsroom) copies(ctx context.Context) error {
	const messages = 100
	n.step("Everybody gets a copy")
	n.say("Two groups subscribe, one of them with two instances, which share; and somebody who just listens, live, with a")
	n.say("queue that goes when he goes. %d messages:", messages)
	for _, s := range []struct{ who, group string }{{"billing 1", "billing"}, {"billing 2", "billing"}, {"mail", "mail"}} {
		sub := pubsub.Subscription{Exchange: n.event, Queue: n.name("news." + s.group)}
		l, err := pubsub.NewSubscriber(n.audience.conn, sub, n.audience.note(s.who), pubsub.SubscriberConfig{})
		if _, err := n.audience.add(ctx, sub, l, err); err != nil {
			return err
		}
	}
	live := pubsub.Subscription{Exchange: n.event}
	l, err := pubsub.NewLiveSubscriber(n.audience.conn, live, n.audience.note("screen"), pubsub.SubscriberConfig{OnGap: n.onGap})
	if _, err := n.audience.add(ctx, live, l, err); err != nil {
		return err
	}
	if err := n.news(ctx, 0, messages); err != nil {
		return err
	}
	for _, who := range [][]string{{"billing 1", "billing 2"}, {"mail"}, {"screen"}} {
		if err := n.audience.await(ctx, messages, who...); err != nil {
			return err
		}
	}
	one, _ := n.audience.count("billing 1")
	two, _ := n.audience.count("billing 2")
	mail, _ := n.audience.count("mail")
	screen, _ := n.audience.count("screen")
	n.say("   billing %d + %d, mail %d, screen %d", one, two, mail, screen)
	n.figure("copies for billing, both together", one+two, messages)
	n.figure("copies for mail", mail, messages)
	n.figure("copies for the screen", screen, messages)
	return nil
}

func (n *newsroom) onGap(from, to time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gaps = append(n.gaps, to.Sub(from))
}

func (n *newsroom) cut(ctx context.Context) error {
	const first, last = 100, 300
	n.step("The readers are cut off")
	n.say("%d more messages, and in the middle of them the cable to the readers is cut. The groups' queues stay, and miss", last-first)
	n.say("nothing. The screen's is gone with its connection: it gets a new one, and is told that it may have missed something.")
	if err := n.news(ctx, first, (first+last)/2); err != nil {
		return err
	}
	n.between("connections cut", n.cable.cut(), 1, 2)
	if err := n.news(ctx, (first+last)/2, last); err != nil {
		return err
	}
	if err := errors.Join(n.audience.await(ctx, last, "billing 1", "billing 2"), n.audience.await(ctx, last, "mail")); err != nil {
		return err
	}
	_, billing := n.audience.count("billing 1", "billing 2")
	_, mail := n.audience.count("mail")
	n.figure("different messages for billing", billing, last)
	n.figure("different messages for mail", mail, last)
	if err := n.untilGap(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, screen := n.audience.count("screen")
	n.figure("gaps the screen was told of", len(n.gaps), 1)
	n.between("different messages for the screen", screen, first, last)
	n.say("           It was told of one of %.2f s at most, so it knows that its picture may be old.", n.gaps[0].Seconds())
	return nil
}

func (n *newsroom) untilGap(ctx context.Context) error {
	for ctx.Err() == nil {
		n.mu.Lock()
		told := len(n.gaps) > 0
		n.mu.Unlock()
		if told {
			return nil
		}
		pause(ctx, 10*time.Millisecond)
	}
	return ctx.Err()
}
