package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

// change is the event: the item whose price is another one now. It does not carry the price, so that it does not matter
// which of two events comes first.
type change struct{ Item string }

// instance is one process of the service, with its cache.
type instance struct {
	name      string
	shop      *shop
	network   *network
	conn      *reconnect.Conn
	publisher *pubsub.Publisher
	leave     context.CancelFunc
	ended     chan error

	mu     sync.Mutex
	cache  map[string]int
	missed int // gaps
}

// start subscribes, and returns when everything that is published from then on is received.
func (i *instance) start(ctx context.Context) (err error) {
	i.publisher, err = pubsub.NewPublisher(i.conn, i.shop.event, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	subscriber, err := pubsub.NewLiveSubscriber(i.conn, pubsub.Subscription{Exchange: i.shop.event}, pubsub.JSON(i.forget),
		pubsub.SubscriberConfig{OnGap: i.onGap, OnOverflow: i.clear})
	if err != nil {
		return err
	}
	running, leave := context.WithCancel(context.WithoutCancel(ctx))
	i.leave = leave
	go func() { i.ended <- subscriber.Run(running) }()
	select {
	case <-subscriber.Ready():
		return nil
	case err := <-i.ended:
		i.ended <- err
		return errors.Join(errors.New("subscription ended"), err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// price is what the cache says, and the database when that does not know.
func (i *instance) price(item string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, known := i.cache[item]; !known {
		i.cache[item] = i.shop.prices.get(item)
	}
	return i.cache[item]
}

// forget handles the event.
func (i *instance) forget(_ context.Context, c change) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.cache, c.Item)
	return nil
}

// onGap is told that events between from and to may be missed: whatever is in the cache may be old.
func (i *instance) onGap(from, to time.Time) {
	i.shop.say("   %s heard nothing for %.1f s, and clears its cache", i.name, to.Sub(from).Seconds())
	i.clear()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.missed++
}

func (i *instance) clear() {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.cache)
}

func (i *instance) gaps() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.missed
}

// until waits for something to become true.
func (i *instance) until(ctx context.Context, cond func() bool) error {
	for !cond() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// stop ends the instance. The last one takes the exchange away.
func (i *instance) stop(last bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var faults []error
	if i.leave != nil {
		i.leave()
		faults = append(faults, <-i.ended)
	}
	if last {
		i.conn.Forget(i.shop.event.Topology()) // a reconnect must not make it anew
		ch, err := i.conn.Channel(ctx)
		if err == nil {
			err = errors.Join(ch.ExchangeDelete(i.shop.event.Name, false, false), ch.Close())
		}
		faults = append(faults, err)
	}
	return errors.Join(append(faults, i.conn.Close(ctx))...)
}
