package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// growth prints what grows with a number: memory of idle workers and of messages in flight, and what a cut costs by the size
// of the topology.
func (s *stand) growth(ctx context.Context, table *strings.Builder) error {
	out := io.MultiWriter(table, stdout{})
	fmt.Fprint(out, "\n| what | how many | the driver | ours |\n|---|--:|--:|--:|\n")
	for _, g := range []struct {
		name, path, queue string
		numbers           []int
		unit              string
		of                func(figures) float64
		both              bool
	}{
		{"memory of an idle worker", "idle", classic, []int{10, 100, 1000}, "KiB", func(f figures) float64 { return f.Memory / 1024 }, true},
		{"memory of a message of 256 B in flight", "inflight", classic, []int{1000, 10_000, 100_000}, "KiB", func(f figures) float64 { return f.Memory / 1024 }, true},
		{"X1 first confirmed publish after a cut; the driver dials again after 100 ms", "recover", quorum, []int{1}, "ms", func(f figures) float64 { return f.Published * 1e3 }, true},
		{"X1 first delivery after a cut", "recover", quorum, []int{1}, "ms", func(f figures) float64 { return f.Delivered * 1e3 }, true},
		{"first channel after a cut, by entities declared again", "topology", classic, []int{10, 100, 1000}, "ms", func(f figures) float64 { return f.Seconds * 1e3 }, false},
		{"memory of an entity", "topology", classic, []int{1000}, "KiB", func(f figures) float64 { return f.Memory / 1024 }, false},
	} {
		if !s.only.MatchString(g.name) {
			continue
		}
		for _, n := range g.numbers {
			cell := func(side string) (string, error) {
				if side == raw && !g.both {
					return "–", nil
				}
				var fs []figures
				for range s.pairs {
					f, err := s.once(ctx, benchCase{path: g.path, queue: g.queue, callers: n, size: 256}, side)
					if err != nil {
						return "", fmt.Errorf("%s: %w", g.name, err)
					}
					fs = append(fs, f)
				}
				return fmt.Sprintf("%.1f %s", g.of(medians(fs)), g.unit), nil
			}
			theirs, err := cell(raw)
			if err != nil {
				return err
			}
			mine, err := cell(ours)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "| %s | %d | %s | %s |\n", g.name, n, theirs, mine)
		}
	}
	return nil
}

// stdout is a writer to standard output.
type stdout struct{}

func (stdout) Write(p []byte) (int, error) { return fmt.Print(string(p)) }

// memory is what is in use, stacks included, after a collection.
func memory() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// idleRaw has so many consumers, each with a channel and a goroutine.
func idleRaw(_ context.Context, s spec) (f figures, err error) {
	conn, err := s.dialRaw()
	if err != nil {
		return f, err
	}
	defer conn.Close()
	before := memory()
	for range s.Callers {
		ch, err := conn.Channel()
		if err != nil {
			return f, err
		}
		if err := ch.Qos(1, 0, false); err != nil {
			return f, err
		}
		in, err := ch.Consume(s.Queue, "", false, false, false, false, nil)
		if err != nil {
			return f, err
		}
		go func() {
			for d := range in {
				_ = d.Ack(false)
			}
		}()
	}
	f.Memory = (memory() - before) / float64(s.Callers)
	return f, nil
}

// idleOurs is one Worker with so many handlers at once.
func idleOurs(ctx context.Context, s spec) (f figures, err error) {
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return f, err
	}
	defer conn.Close(context.Background())
	if _, err := conn.Inspect(ctx, s.Queue); err != nil { // so that there is a connection
		return f, err
	}
	before := memory()
	w, err := workqueue.NewWorker(conn, s.workQueue(), func(context.Context, amqp.Delivery) error { return nil }, workqueue.WorkerConfig{Concurrency: s.Callers})
	if err != nil {
		return f, err
	}
	life, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(life) }()
	err = s.until(ctx, func(q amqp.Queue) bool { return q.Consumers == s.Callers })
	f.Memory = (memory() - before) / float64(s.Callers)
	stop()
	return f, errors.Join(err, <-done)
}

// until looks at the queue until it is as it should be.
func (s spec) until(ctx context.Context, ok func(amqp.Queue) bool) error {
	conn, err := s.dialRaw()
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for {
		q, err := ch.QueueDeclarePassive(s.Queue, true, false, false, false, nil)
		if err != nil || ok(q) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sender is one of the two senders of what is in flight: it has sent a message already, so that its channel is open, and
// publish sends so many more and waits for their confirms.
type sender struct {
	publish func() error
	closing func() error
}

// inFlightRaw has so many messages sent whose confirms are held up.
func inFlightRaw(ctx context.Context, s spec) (figures, error) {
	return s.inFlight(ctx, func(s spec, n int) (sender, error) {
		c, closing, err := s.rawChannel()
		if err != nil {
			return sender{}, err
		}
		publish := func() error {
			pending := make([]*amqp.DeferredConfirmation, n)
			for i := range pending {
				if pending[i], err = c.send(c.body); err != nil {
					return err
				}
			}
			for _, confirm := range pending {
				if !confirm.Wait() {
					return errUnconfirmed
				}
			}
			return nil
		}
		return sender{publish, closing}, c.publish(c.body)
	})
}

func inFlightOurs(ctx context.Context, s spec) (figures, error) {
	return s.inFlight(ctx, func(s spec, n int) (sender, error) {
		conn, err := s.dialOurs(ctx)
		if err != nil {
			return sender{}, err
		}
		p, err := conn.NewPublisher(reconnect.PublisherConfig{Window: n, ConfirmTimeout: -1})
		if err != nil {
			return sender{}, errors.Join(err, conn.Close(ctx))
		}
		body := make([]byte, s.Size)
		batch := make([]reconnect.Message, n)
		for i := range batch {
			batch[i] = reconnect.Message{Key: s.Queue, Publishing: amqp.Publishing{Body: body}}
		}
		return sender{
			func() error { return p.PublishBatch(ctx, batch) }, func() error { return conn.Close(context.Background()) },
		}, p.PublishBatch(ctx, batch[:1])
	})
}

// senders is how many share what is in flight: a Publisher's window has room for 65,535. still is how long nothing more arrives.
const (
	senders = 2
	still   = 500 * time.Millisecond
)

// inFlight measures while all of it has arrived and nothing of that is told.
func (s spec) inFlight(ctx context.Context, newSender func(s spec, n int) (sender, error)) (f figures, err error) {
	proxy, err := testenv.NewProxy(s.URL)
	if err != nil {
		return f, err
	}
	defer proxy.Close()
	through := s
	through.URL = proxy.URL()
	var sending [senders]sender
	for i := range sending {
		if sending[i], err = newSender(through, s.Callers/senders); err != nil {
			return f, err
		}
		defer func() { err = errors.Join(err, sending[i].closing()) }()
	}
	before := memory()
	proxy.FreezeToClient()
	done := make(chan error, senders)
	for _, one := range sending {
		go func() { done <- one.publish() }()
	}
	// A Publisher lets no queue that confirms nothing have its whole window: so all of it may be less than was asked for.
	arrived, since := 0, time.Now()
	err = s.until(ctx, func(q amqp.Queue) bool {
		if q.Messages != arrived {
			arrived, since = q.Messages, time.Now()
		}
		return arrived > senders && time.Since(since) > still
	})
	if err != nil {
		return f, err
	}
	f.Memory = (memory() - before) / float64(arrived-senders)
	proxy.Heal()
	for range sending {
		err = errors.Join(err, <-done)
	}
	return f, err
}

// topologyOurs is how long it takes, after a cut, to have a channel again: on which all is declared.
func topologyOurs(ctx context.Context, s spec) (f figures, err error) {
	proxy, err := testenv.NewProxy(s.URL)
	if err != nil {
		return f, err
	}
	defer proxy.Close()
	s.URL = proxy.URL()
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return f, err
	}
	defer conn.Close(context.Background())
	t := s.entities()
	before := memory()
	if err := conn.Declare(ctx, t); err != nil {
		return f, err
	}
	ch, err := conn.Channel(ctx)
	if err != nil {
		return f, err
	}
	f.Memory = (memory() - before) / float64(s.Callers)
	lost := ch.NotifyClose(make(chan *amqp.Error, 1))
	proxy.Cut()
	began := time.Now()
	<-lost
	if ch, err = conn.Channel(ctx); err != nil {
		return f, err
	}
	f.Seconds = time.Since(began).Seconds()
	for _, q := range t.Queues {
		if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
			return f, err
		}
	}
	for _, x := range t.Exchanges {
		if err := ch.ExchangeDelete(x.Name, false, false); err != nil {
			return f, err
		}
	}
	return f, nil
}

// entities is a topology of so many: a fifth exchanges, two fifths queues, two fifths bindings.
func (s spec) entities() (t reconnect.Topology) {
	for i := range s.Callers / 5 {
		x := fmt.Sprintf("%s-x%d", s.Queue, i)
		t.Exchanges = append(t.Exchanges, reconnect.Exchange{Name: x, Kind: amqp.ExchangeDirect})
		for j := range 2 {
			q := fmt.Sprintf("%s-q%d-%d", s.Queue, i, j)
			t.Queues = append(t.Queues, reconnect.Queue{Name: q, Type: amqp.QueueTypeClassic})
			t.Bindings = append(t.Bindings, reconnect.Binding{Queue: q, Exchange: x, Key: q})
		}
	}
	return t
}
