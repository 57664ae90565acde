package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// job is one run over an album: a producer that queues every picture and workers that do them.
type job struct {
	conn    *reconnect.Conn
	queue   workqueue.Queue
	album   *album
	workers int
	halfway func(context.Context) error // called when half of the pictures are queued; nil: nothing happens
}

// run returns when every picture is done or has failed, or when ctx has ended and the pictures that were begun are done.
func (j job) run(ctx context.Context) error {
	worker, err := workqueue.NewWorker(j.conn, j.queue, workqueue.JSON(j.album.handle),
		workqueue.WorkerConfig{Concurrency: j.workers, HandlerTimeout: time.Minute})
	if err != nil {
		return err
	}
	err = workUntil(ctx, worker, func(ctx context.Context) error {
		if err := j.publish(ctx); err != nil {
			return err
		}
		select {
		case <-j.album.settled:
		case <-ctx.Done():
		}
		return nil
	})
	// An acknowledgement that was lost with a connection at the very end leaves its message in the queue.
	for err == nil && ctx.Err() == nil {
		var q amqp.Queue
		if q, err = j.conn.Inspect(ctx, j.queue.Name); err != nil || q.Messages == 0 {
			break
		}
		err = workUntil(ctx, worker, func(ctx context.Context) error {
			_, err := j.wait(ctx, j.queue.Name, func(messages int) bool { return messages == 0 })
			return err
		})
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // Ctrl-C is no failure
	}
	return err
}

// workUntil runs the workers until done returns. Then they drain: Run returns when what they have begun is finished and
// its acknowledgement has reached the broker.
func workUntil(ctx context.Context, worker *workqueue.Worker, done func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	result := make(chan error, 1)
	go func() {
		defer stop()
		result <- done(ctx)
	}()
	if err := worker.Run(ctx); err != nil {
		stop()
		<-result
		return err
	}
	return <-result
}

// publish queues the pictures. Each Publish returns when the broker has the message safely, however long the broker is
// away meanwhile (Timeout: -1).
func (j job) publish(ctx context.Context) error {
	producer, err := workqueue.NewProducer(j.conn, j.queue, reconnect.PublisherConfig{Timeout: -1})
	if err != nil {
		return err
	}
	for id := range j.album.paths {
		if id == len(j.album.paths)/2 && j.halfway != nil {
			if err := j.halfway(ctx); err != nil {
				return err
			}
		}
		if err := producer.PublishJSON(ctx, task{ID: id}); err != nil {
			return err
		}
	}
	return nil
}

// report prints what was done, and what is in the dead-letter queue.
func (j job) report(w io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done, failed := j.album.counts()
	var dead []int
	if done+len(failed) > 0 { // else it was stopped so early that there may be no queue
		var err error
		if dead, err = j.deadLetters(ctx, len(failed)); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "\ndone: %d of %d pictures, thumbnails in %s\n", done, len(j.album.paths), j.album.out)
	fmt.Fprintf(w, "in the dead-letter queue: %d\n", len(dead))
	for _, id := range dead {
		fmt.Fprintf(w, "  %q: %q\n", j.album.paths[id], failed[id])
	}
	if left := len(j.album.paths) - done - len(failed); left > 0 {
		return fmt.Errorf("stopped: %d pictures were not begun", left)
	}
	return nil
}

// deadLetters returns the pictures whose messages are in the dead-letter queue, once there are as many as expected. The
// messages stay there.
func (j job) deadLetters(ctx context.Context, expected int) ([]int, error) {
	name := j.queue.DeadLetterQueue()
	ready, err := j.wait(ctx, name, func(messages int) bool { return messages >= expected })
	if err != nil {
		return nil, err
	}
	ch, err := j.conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	defer ch.Close() // what was taken and not acknowledged goes back
	var ids []int
	for range ready {
		d, ok, err := ch.Get(name, false)
		if err != nil {
			return nil, err
		}
		var t task
		if ok && json.Unmarshal(d.Body, &t) == nil && t.ID >= 0 && t.ID < len(j.album.paths) {
			ids = append(ids, t.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil // a message may be dead-lettered twice when the broker is restarted meanwhile
}

// wait blocks until enough says so of the number of messages in a queue, and returns it.
func (j job) wait(ctx context.Context, queue string, enough func(messages int) bool) (int, error) {
	for {
		q, err := j.conn.Inspect(ctx, queue)
		if err != nil || enough(q.Messages) {
			return q.Messages, err
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%d messages in queue %q: %w", q.Messages, queue, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// deleteQueues takes the run's queues away.
func deleteQueues(conn *reconnect.Conn, queue workqueue.Queue) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn.Forget(queue.Topology()) // a reconnect must not make it anew
	ch, err := conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	for _, q := range queue.Topology().Queues {
		if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
			return fmt.Errorf("delete queue %q: %w", q.Name, err)
		}
	}
	return nil
}
