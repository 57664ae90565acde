package workqueue_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func TestTopology(t *testing.T) {
	dlq := reconnect.Queue{Name: "jobs.dlq", Arguments: amqp.Table{"x-delivery-limit": int64(1_000_000)}}
	for name, test := range map[string]struct {
		queue workqueue.Queue
		want  reconnect.Topology
	}{
		"default": {
			workqueue.Queue{Name: "jobs"},
			reconnect.Topology{Queues: []reconnect.Queue{dlq, {Name: "jobs", Type: "quorum", Arguments: amqp.Table{
				"x-delivery-limit": int64(20), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jobs.dlq",
				"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}}}},
		},
		"all of a quorum queue": {
			workqueue.Queue{Name: "jobs", SingleActiveConsumer: true, DeliveryLimit: 5, MaxLength: 10, TTL: time.Hour,
				DeadLetterExchange: "dead", Arguments: amqp.Table{"x-queue-leader-locator": "balanced"}},
			reconnect.Topology{
				Exchanges: []reconnect.Exchange{{Name: "dead", Kind: "direct"}},
				Queues: []reconnect.Queue{dlq, {Name: "jobs", Type: "quorum", Arguments: amqp.Table{
					"x-delivery-limit": int64(5), "x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "jobs.dlq",
					"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-max-length": int64(10),
					"x-message-ttl": int64(3_600_000), "x-single-active-consumer": true, "x-queue-leader-locator": "balanced"}}},
				Bindings: []reconnect.Binding{{Exchange: "dead", Key: "jobs.dlq", Queue: "jobs.dlq"}},
			},
		},
		"priorities": {
			workqueue.Queue{Name: "jobs", MaxPriority: 5},
			reconnect.Topology{Queues: []reconnect.Queue{dlq, {Name: "jobs", Type: "classic", Arguments: amqp.Table{
				"x-max-priority": int64(5), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jobs.dlq",
				"x-overflow": "reject-publish"}}}},
		},
		"no dead letters": {
			workqueue.Queue{Name: "jobs", NoDeadLetter: true, Declare: reconnect.Passive},
			reconnect.Topology{Queues: []reconnect.Queue{{Name: "jobs", Type: "quorum", Declare: reconnect.Passive,
				Arguments: amqp.Table{"x-delivery-limit": int64(20), "x-overflow": "reject-publish"}}}},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, test.queue.Topology()) })
	}
}

func TestQueueFaultsNameTheirField(t *testing.T) {
	conn := lazyConn(t)
	for field, q := range map[string]workqueue.Queue{
		"Name: ":                      {},
		"Name: 201 bytes":             {Name: strings.Repeat("n", 201)},
		"MaxPriority: 256":            {MaxPriority: 256},
		"MaxPriority: -1":             {MaxPriority: -1},
		"DeliveryLimit: -1":           {DeliveryLimit: -1},
		"DeliveryLimit: a classic":    {DeliveryLimit: 3, Classic: true},
		"MaxLength: -1":               {MaxLength: -1},
		"TTL: -1s":                    {TTL: -time.Second},
		"TTL: 1.5ms":                  {TTL: 1500 * time.Microsecond},
		"TTL: 1440h0m0s":              {TTL: 60 * 24 * time.Hour},
		"DeadLetterExchange: set":     {DeadLetterExchange: "d", NoDeadLetter: true},
		"Declare: 7":                  {Declare: 7},
		"Arguments: x-queue-type":     {Arguments: amqp.Table{"x-queue-type": "classic"}},
		"Arguments: x-delivery-limit": {Arguments: amqp.Table{"x-delivery-limit": 3}},
		"Arguments: x-expires":        {Arguments: amqp.Table{"x-expires": 3}},
		"Arguments":                   {Arguments: amqp.Table{"x-foo": []string{"unsupported"}}},
		"MaxPriority: 300":            {MaxPriority: 300, TTL: -1},
	} {
		if q.Name == "" && field != "Name: " {
			q.Name = "jobs"
		}
		_, err := workqueue.NewProducer(conn, q, reconnect.PublisherConfig{})
		require.ErrorContains(t, err, field)
		_, err = workqueue.NewWorker(conn, q, ignore, workqueue.WorkerConfig{})
		require.ErrorContains(t, err, field)
	}
}

func TestConstructorFaults(t *testing.T) {
	conn, q := lazyConn(t), workqueue.Queue{Name: "jobs"}
	_, err := workqueue.NewProducer(nil, q, reconnect.PublisherConfig{})
	require.ErrorContains(t, err, "conn: nil")
	_, err = workqueue.NewProducer(conn, q, reconnect.PublisherConfig{Window: -1})
	require.ErrorContains(t, err, "Window")
	_, err = workqueue.NewWorker(nil, q, ignore, workqueue.WorkerConfig{})
	require.ErrorContains(t, err, "conn: nil")
	_, err = workqueue.NewWorker(conn, q, nil, workqueue.WorkerConfig{})
	require.ErrorContains(t, err, "Handler: missing")
	_, err = workqueue.NewBatchWorker(conn, q, nil, workqueue.WorkerConfig{})
	require.ErrorContains(t, err, "Handler: missing")
	_, err = workqueue.NewWorker(conn, workqueue.Queue{MaxLength: -1}, workqueue.JSON[int](nil), workqueue.WorkerConfig{
		BatchSize: 3, BatchWait: time.Second, Concurrency: -1, Prefetch: 70_000, PerSecond: -1})
	for _, field := range []string{"Name: ", "MaxLength: -1", "BatchSize: only", "BatchWait: only", "Handler: missing",
		"Concurrency: -1", "Prefetch: 70000", "PerSecond: -1"} {
		require.ErrorContains(t, err, field, "all faults at once")
	}
	_, err = workqueue.NewBatchWorker(conn, q, func(context.Context, []amqp.Delivery) error { return nil },
		workqueue.WorkerConfig{BatchSize: -1, BatchWait: -1})
	require.ErrorContains(t, err, "BatchSize: -1")
	require.ErrorContains(t, err, "BatchWait: -1")
	for field, cfg := range map[string]workqueue.WorkerConfig{
		"Concurrency":     {Concurrency: -1},
		"Prefetch":        {Prefetch: 65536},
		"HandlerTimeout":  {Prefetch: 2, HandlerTimeout: 16 * time.Minute},
		"ShutdownTimeout": {ShutdownTimeout: -2},
		"PerSecond":       {PerSecond: -1},
	} {
		_, err = workqueue.NewWorker(conn, q, ignore, cfg)
		require.ErrorContains(t, err, field)
	}
}
