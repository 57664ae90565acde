package retry_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

type Payment struct {
	Account string
	Amount  int
}

// A worker whose failures are tried again four times: after 1, 5, 25 and 125 seconds.
func Example() {
	ctx := context.Background() // in a program: of signal.NotifyContext
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "payments"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	payments := workqueue.Queue{Name: "payments"}
	retrier, err := retry.New(ctx, conn, payments.Name, retry.Policy{MaxAttempts: 5})
	if err != nil {
		log.Fatal(err)
	}
	book := func(ctx context.Context, p Payment) error {
		switch {
		case p.Amount <= 0:
			return retry.Permanent(fmt.Errorf("amount %d", p.Amount)) // to the dead-letter queue at once
		case p.Account == "busy":
			return retry.After(errors.New("429"), 20*time.Second) // not earlier than that
		}
		return nil
	}
	worker, err := workqueue.NewWorker(conn, payments, retrier.Handle(workqueue.JSON(book)), workqueue.WorkerConfig{Concurrency: 8})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// The delays of a policy, to look at before it is in force.
func ExamplePolicy_Delays() {
	policy := retry.Policy{MaxAttempts: 4, InitialDelay: 500 * time.Millisecond, Multiplier: 3}
	fmt.Println(policy.Delays())
	for _, queue := range policy.Topology("payments").Queues {
		fmt.Println(queue.Name)
	}
	// Output:
	// [500ms 1.5s 4.5s]
	// payments.dlq
	// payments.retry.500
	// payments.retry.1500
	// payments.retry.4500
}

// A handler that wants to know which attempt this is.
func ExampleInfoOf() {
	charge := func(_ context.Context, d amqp.Delivery) error {
		info := retry.InfoOf(d)
		fmt.Printf("attempt %d, before: %q\n", info.Attempt, info.LastError)
		return nil
	}
	_ = charge(context.Background(), amqp.Delivery{})
	_ = charge(context.Background(), amqp.Delivery{Headers: amqp.Table{"warren-attempt": int64(2), "warren-error": "timeout"}})
	// Output:
	// attempt 1, before: ""
	// attempt 2, before: "timeout"
}

// A Retrier in a loop over the raw driver. Three answers are possible.
func ExampleRetrier_Handle() {
	var (
		retrier    *retry.Retrier       // of retry.New
		deliveries <-chan amqp.Delivery // of ch.ConsumeWithContext, on the same queue
		ctx        = context.Background()
	)
	consume := func(h retry.Handler) {
		for d := range deliveries {
			var later interface{ NotNow() bool }
			switch err := h(ctx, d); {
			case err == nil: // done, or a copy is stored
				_ = d.Ack(false)
			case errors.As(err, &later) && later.NotNow(): // nothing was decided: the message must not get lost
				time.Sleep(time.Second)
				_ = d.Nack(false, true)
			default: // no copy can be sent: the broker dead-letters it
				_ = d.Reject(false)
			}
		}
	}
	if retrier != nil {
		consume(retrier.Handle(func(context.Context, amqp.Delivery) error { return nil }))
	}
}

// Each message of a batch has its own outcome.
func ExampleRetrier_HandleBatch() {
	store := func(_ context.Context, ds []amqp.Delivery) error {
		outcomes := make(reconnect.BatchError, len(ds))
		var wg sync.WaitGroup
		for i, d := range ds {
			wg.Go(func() {
				if len(d.Body) == 0 {
					outcomes[i] = retry.Permanent(errors.New("empty"))
				}
			})
		}
		wg.Wait()
		for _, err := range outcomes {
			if err != nil {
				return outcomes // nil entries are done
			}
		}
		return nil
	}
	start := func(conn *reconnect.Conn, retrier *retry.Retrier) (*workqueue.Worker, error) {
		return workqueue.NewBatchWorker(conn, workqueue.Queue{Name: "clicks"}, retrier.HandleBatch(store), workqueue.WorkerConfig{BatchSize: 500})
	}
	_ = start
}

// A message that arrives in the queue after a while.
func ExampleRetrier_Later() {
	remind := func(ctx context.Context, retrier *retry.Retrier, order []byte) error {
		return retrier.Later(ctx, amqp.Publishing{Body: order}, 2*time.Minute)
	}
	_ = remind
}
