package workqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// Image is the payload of the examples: the number of a picture, never its path.
type Image struct {
	ID int64
}

func resize(ctx context.Context, img Image) error { return ctx.Err() }

// The whole pattern: one program that queues a job and works on jobs. Any number of its instances share the work.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "thumbnails"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	images := workqueue.Queue{Name: "images.to-process"} // quorum, durable, with the dead-letter queue images.to-process.dlq

	producer, err := workqueue.NewProducer(conn, images, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := producer.PublishJSON(ctx, Image{ID: 42}); err != nil { // nil: the broker has it safely
		log.Print(err)
	}

	worker, err := workqueue.NewWorker(conn, images, workqueue.JSON(resize), workqueue.WorkerConfig{Concurrency: 20})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil { // until Ctrl-C, then until what was begun is done
		log.Print(err)
	}
}

// A shutdown in order: the workers drain while the program still lives, then the connection is closed.
func ExampleWorker_Run() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}

	images := workqueue.Queue{Name: "images.to-process"}
	thumbnails, err := workqueue.NewWorker(conn, images, workqueue.JSON(resize), workqueue.WorkerConfig{
		Concurrency:     8,
		ShutdownTimeout: 20 * time.Second, // below what the process supervisor grants
	})
	if err != nil {
		log.Fatal(err)
	}
	mails := workqueue.Queue{Name: "mails.to-send"}
	mailer, err := workqueue.NewWorker(conn, mails, sendMail, workqueue.WorkerConfig{})
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(ctx) // one that cannot go on ends the other
	defer cancel()
	ended := make(chan error, 2)
	for _, worker := range []*workqueue.Worker{thumbnails, mailer} {
		go func() {
			defer cancel()
			ended <- worker.Run(ctx)
		}()
	}
	err = errors.Join(<-ended, <-ended) // nil after a shutdown within the ShutdownTimeout
	err = errors.Join(err, conn.Close(context.Background()))
	if err != nil {
		log.Print(err)
	}
}

func sendMail(ctx context.Context, d amqp.Delivery) error { return ctx.Err() }

// A handler of raw deliveries, and JSON around a function that wants the value only.
func ExampleJSON() {
	typed := workqueue.JSON(func(ctx context.Context, img Image) error { return resize(ctx, img) })

	// A Handler that needs more than the value decodes it by itself.
	raw := func(ctx context.Context, d amqp.Delivery) error {
		var img Image
		if err := json.Unmarshal(d.Body, &img); err != nil {
			return err // to the dead-letter queue
		}
		if d.Redelivered {
			log.Printf("image %d was begun before", img.ID)
		}
		return resize(ctx, img)
	}

	// Both are plain functions, and tested without a broker.
	for _, handle := range []workqueue.Handler{typed, raw} {
		fmt.Println(handle(context.Background(), amqp.Delivery{Body: []byte(`{"ID": 42}`)}))
	}
	fmt.Println(typed(context.Background(), amqp.Delivery{}) != nil) // an empty body is an error
	// Output:
	// <nil>
	// <nil>
	// true
}

// A classic queue whose urgent messages go first.
func ExampleQueue_priorities() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)

	mails := workqueue.Queue{Name: "mails.to-send", MaxPriority: 2} // 0 newsletters, 1 receipts, 2 passwords
	producer, err := workqueue.NewProducer(conn, mails, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := producer.Publish(ctx, amqp.Publishing{Priority: 2, Body: []byte("reset link for 17")}); err != nil {
		log.Print(err)
	}
}

// What a queue needs is plain data: to print, to declare at the start of a program, or for an operator to declare.
func ExampleQueue_Topology() {
	images := workqueue.Queue{Name: "images.to-process", DeliveryLimit: 5, TTL: time.Hour, MaxLength: 100_000}
	for _, q := range images.Topology().Queues {
		fmt.Println(q.Name, q.Arguments["x-delivery-limit"], q.Arguments["x-message-ttl"])
	}
	// Output:
	// images.to-process.dlq 1000000 <nil>
	// images.to-process 5 3600000
}

// One message at a time over all workers, in the order of the queue.
func ExampleQueue_singleActiveConsumer() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)

	ledger := workqueue.Queue{Name: "ledger.entries", SingleActiveConsumer: true}
	worker, err := workqueue.NewWorker(conn, ledger, book, workqueue.WorkerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Print(err)
	}
}

func book(ctx context.Context, d amqp.Delivery) error { return ctx.Err() }

// Publishing many messages at once, and seeing which of them the broker does not have.
func ExampleProducer_PublishBatch() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	producer, err := workqueue.NewProducer(conn, workqueue.Queue{Name: "clicks"}, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}

	msgs := []amqp.Publishing{{Body: []byte("/")}, {Body: []byte("/about")}}
	err = producer.PublishBatch(ctx, msgs)
	var failed reconnect.BatchError
	switch {
	case errors.As(err, &failed):
		for i, err := range failed {
			if err != nil {
				log.Printf("click %d: %v", i, err)
			}
		}
	case err != nil: // nothing was sent
		log.Print(err)
	}
}

// The errors of a publish, and what each of them means for the caller.
func ExampleProducer_Publish_errors() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	jobs := workqueue.Queue{Name: "jobs", MaxLength: 10_000}
	producer, err := workqueue.NewProducer(conn, jobs, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}

	err = producer.Publish(ctx, amqp.Publishing{MessageId: "job-17", Body: []byte("...")})
	var wrong *reconnect.TopologyError
	switch {
	case err == nil: // the broker has it safely
	case errors.Is(err, reconnect.ErrRefused): // the queue is full: shed load, or try again later
	case errors.Is(err, reconnect.ErrUnknown): // it may have arrived: again only under the same MessageId
	case errors.As(err, &wrong): // the queue exists with other arguments: a person has to look at it
		log.Fatal(wrong)
	default: // not sent, or refused by the broker for good (403, 404): it is nowhere
		log.Print(err)
	}
}

// Small messages handled many at a time, for a database that likes that better.
func ExampleNewBatchWorker() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)

	store := func(ctx context.Context, ds []amqp.Delivery) error {
		failed := make(reconnect.BatchError, len(ds)) // one entry per message; nil in all of them, or nil at all: all done
		for i, d := range ds {
			if len(d.Body) == 0 {
				failed[i] = errors.New("empty click") // this one alone goes to the dead-letter queue
			}
		}
		return failed
	}
	worker, err := workqueue.NewBatchWorker(conn, workqueue.Queue{Name: "clicks"}, store, workqueue.WorkerConfig{
		BatchSize: 500,
		BatchWait: 100 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Print(err)
	}
}

// away is an error by which a handler says "not now": the message stays with the worker, nothing is counted against it,
// and the handler is called again.
type away struct{ cause error }

func (e away) Error() string             { return "the database is away: " + e.cause.Error() }
func (e away) Unwrap() error             { return e.cause }
func (e away) NotNow() bool              { return true }
func (e away) RetryAfter() time.Duration { return 5 * time.Second }

// A handler that cannot work at the moment keeps its message: an outage must not empty the queue into the dead-letter
// queue.
func ExampleHandler_notNow() {
	save := func(ctx context.Context, d amqp.Delivery) error {
		if err := ping(ctx); err != nil {
			return away{err}
		}
		return nil
	}
	err := save(context.Background(), amqp.Delivery{})
	fmt.Println(err)
	// Output: the database is away: connection refused
}

func ping(context.Context) error { return errors.New("connection refused") }

// How much waits, how many work on it, and how much has failed.
func Example_depth() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)

	images := workqueue.Queue{Name: "images.to-process"}
	for _, name := range []string{images.Name, images.DeadLetterQueue()} {
		q, err := conn.Inspect(ctx, name)
		var refused *amqp.Error
		switch {
		case errors.As(err, &refused) && refused.Code == amqp.NotFound:
			fmt.Println(name, "is not declared yet")
		case err != nil:
			log.Print(err)
		default:
			fmt.Println(name, q.Messages, "ready,", q.Consumers, "consumers")
		}
	}
}

// A worker that is told to rest, at night or while something else needs the machine.
func ExampleWorker_Pause() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
	worker, err := workqueue.NewWorker(conn, workqueue.Queue{Name: "reports"}, book, workqueue.WorkerConfig{PerSecond: 2})
	if err != nil {
		log.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	select {
	case <-worker.Ready(): // it consumes
	case <-ctx.Done():
	}
	worker.Pause()  // takes nothing new; what it has not started goes back to the queue
	worker.Resume() // goes on
	if err := <-ended; err != nil {
		log.Print(err)
	}
}

// A classic queue becomes a quorum queue. All who use it have ended; they begin again with the new description.
func ExampleMove() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "move"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	from := workqueue.Queue{Name: "images.to-process", Classic: true} // as it was
	to := workqueue.Queue{Name: "images.to-process"}                  // as it will be
	moved, err := workqueue.Move(ctx, conn, from, to)
	if err != nil {
		log.Fatal("call it again, nothing is lost: ", err)
	}
	fmt.Println("moved", moved, "messages")
}
