package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

// journal is the partitions' chapter: accounts with entries that must be booked in their order.
type journal struct {
	*tour
	cable      *cable
	conn       *reconnect.Conn
	partitions consistenthash.Partitions
	publisher  *consistenthash.Publisher
}

func partitions(ctx context.Context, t *tour) (err error) {
	j := &journal{tour: t, cable: new(cable), partitions: consistenthash.Partitions{Name: t.name("accounts"), Count: 4}}
	j.conn, err = reconnect.Dial(ctx, t.url, reconnect.Config{Name: t.name("journal"), DialContext: j.cable.dial, Logger: t.logger()})
	if err != nil {
		return err
	}
	defer j.conn.Close(context.Background())
	defer func() { err = errors.Join(err, j.cleanUp()) }()
	if j.publisher, err = consistenthash.NewPublisher(j.conn, j.partitions, reconnect.PublisherConfig{}); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{j.ordering, j.failing, j.resizing} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (j *journal) ordering(ctx context.Context) error {
	const accounts, entries, instances = 20, 15, 2
	j.step("In order by key, whatever happens")
	j.say("%d accounts with %d entries each, %d partitions, %d instances. An account is the key: its entries are booked", accounts, entries, j.partitions.Count, instances)
	j.say("one after the other, whoever books them, while others are booked at the same time. In the middle the cable is")
	j.say("cut. An account's partition is computed from its key, without asking anybody:")
	for _, key := range []string{account(0), account(2)} {
		j.say("   %s -> partition %d", key, j.partitions.Of(key))
	}
	if err := j.send(ctx, accounts, 0, entries); err != nil {
		return err
	}
	b := newBook()
	counts, err := j.work(ctx, instances, b.handler(3*time.Millisecond, noEntry), func(ctx context.Context) error {
		if err := b.wait(ctx, accounts*entries/2); err != nil {
			return err
		}
		j.say("   %d connections cut", j.cable.cut())
		return b.wait(ctx, accounts*entries)
	})
	if err != nil {
		return err
	}
	for partition, n := range counts {
		j.say("   partition %d: %d entries", partition, n)
	}
	j.figure("entries booked", b.booked(), accounts*entries)
	j.figure("out of order", b.outOfOrder(), 0)
	j.between("booked at the same time", b.most(), 2, accounts)
	return nil
}

func (j *journal) failing(ctx context.Context) error {
	const accounts, entries, bad = 4, 5, 2
	j.step("A failure is tried again where it is")
	j.say("Entry %d of every account fails. It stays at the head of its partition and is tried 3 times; nothing overtakes it", bad)
	j.say("meanwhile. Then it goes to the dead-letter queue, and the account goes on:")
	if err := j.send(ctx, accounts, 0, entries); err != nil {
		return err
	}
	b := newBook()
	_, err := j.work(ctx, 1, b.handler(0, bad), func(ctx context.Context) error {
		return errors.Join(b.wait(ctx, accounts*(entries-1)), j.reaches(ctx, j.partitions.DeadLetterQueue(), accounts))
	})
	if err != nil {
		return err
	}
	j.figure("entries booked", b.booked(), accounts*(entries-1))
	j.figure("out of order", b.outOfOrder(), 0)
	j.figure("attempts at the entries that fail", b.failures(), accounts*attempts)
	return nil
}

func (j *journal) resizing(ctx context.Context) error {
	const accounts, entries, count = 20, 5, 6
	j.step("Another number of partitions")
	j.say("The broker remembers that there are %d. A program that comes with another number would send entries past those", j.partitions.Count)
	j.say("that still wait, so it is refused:")
	if err := j.send(ctx, accounts, 0, entries); err != nil {
		return err
	}
	wrong, err := j.other(ctx, count)
	if err != nil {
		return err
	}
	j.say("   %v", quoted(wrong.Error()))
	j.figure("refused", boolean(errors.Is(wrong, consistenthash.ErrCountChanged)), 1)
	j.say("Resize moves what waits, in order, and changes the number:")
	moved, err := consistenthash.Resize(ctx, j.conn, j.partitions, count)
	if err != nil {
		return err
	}
	j.figure("messages moved", moved, accounts*entries)
	j.partitions.Count = count
	b := newBook()
	if _, err = j.work(ctx, 1, b.handler(0, noEntry), func(ctx context.Context) error { return b.wait(ctx, accounts*entries) }); err != nil {
		return err
	}
	j.figure("entries booked", b.booked(), accounts*entries)
	j.figure("out of order", b.outOfOrder(), 0)
	return nil
}

// other publishes as a program with another number of partitions would, and returns why it may not.
func (j *journal) other(ctx context.Context, count int) (refusal, err error) {
	conn, err := reconnect.Dial(ctx, j.url, reconnect.Config{Name: j.name("other"), Logger: j.logger()})
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.Background())
	p := j.partitions
	p.Count = count
	publisher, err := consistenthash.NewPublisher(conn, p, reconnect.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	if refusal = publisher.Publish(ctx, account(0), amqp.Publishing{}); refusal == nil {
		refusal = errors.New("not refused")
	}
	return refusal, nil
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// send publishes entries first to last-1 of each account, and returns when the broker has them safely.
func (j *journal) send(ctx context.Context, accounts, first, last int) error {
	var batch []reconnect.Message
	for n := first; n < last; n++ {
		for a := range accounts {
			batch = append(batch, reconnect.Message{Key: account(a), Publishing: amqp.Publishing{Body: fmt.Append(nil, n)}})
		}
	}
	return j.publisher.PublishBatch(ctx, batch)
}

func account(n int) string { return fmt.Sprintf("account-%02d", n) }

// attempts are made at an entry.
const attempts = 3

// work runs consumers while the given function goes on, then they drain. It returns how many entries of each partition they booked.
func (j *journal) work(ctx context.Context, instances int, h consistenthash.Handler, during func(context.Context) error) (counts []int64, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	consumers, errs := make([]*consistenthash.Consumer, instances), make([]error, instances)
	for i := range consumers {
		consumers[i], err = consistenthash.NewConsumer(j.conn, j.partitions, h, consistenthash.ConsumerConfig{
			MaxAttempts: attempts, InitialDelay: 20 * time.Millisecond})
		if err != nil {
			return nil, err
		}
	}
	for i, c := range consumers {
		running.Go(func() {
			if errs[i] = c.Run(ctx); errs[i] != nil {
				stop(errs[i])
			}
		})
	}
	err = during(ctx)
	stop(nil)
	running.Wait()
	counts = make([]int64, j.partitions.Count)
	for _, c := range consumers {
		for partition, n := range c.Counts() {
			counts[partition] += n
		}
	}
	return counts, errors.Join(append(errs, err)...)
}

// reaches waits until a queue holds so many messages.
func (j *journal) reaches(ctx context.Context, queue string, n int) error {
	for {
		q, err := j.conn.Inspect(ctx, queue)
		if err != nil || q.Messages >= n {
			return err
		}
		if pause(ctx, 20*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%d of %d messages in queue %q: %w", q.Messages, n, queue, ctx.Err())
		}
	}
}

// cleanUp takes everything away again.
func (j *journal) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ch, err := j.conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	t := j.partitions.Topology()
	j.conn.Forget(t)
	for _, q := range t.Queues {
		if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
			return err
		}
	}
	return ch.ExchangeDelete(j.partitions.Name, false, false)
}
