// Package workqueue is one queue and many workers, each message to exactly one of them: the way to spread jobs over
// processes that may come, go and crash.
//
//	Producer ──┐                     ┌── Worker (channel 1..n)
//	Producer ──┼──> [ name ] ────────┼── Worker
//	Producer ──┘       │ failed      └── Worker
//	                   v
//	             [ name.dlq ]
//
// A minimal program:
//
//	conn, err := reconnect.Dial(ctx, url, reconnect.Config{})
//	images := workqueue.Queue{Name: "images.to-process"}
//	producer, err := workqueue.NewProducer(conn, images, reconnect.PublisherConfig{})
//	err = producer.PublishJSON(ctx, Image{ID: 42})
//	worker, err := workqueue.NewWorker(conn, images, workqueue.JSON(resize), workqueue.WorkerConfig{Concurrency: 20})
//	err = worker.Run(ctx)
//
// # Guarantees
//
// A message whose publish returned nil is handled at least once, or ends in the dead-letter queue. It may be handled more
// than once: after a lost connection, or when its worker died before the acknowledgement arrived. Handlers that must not
// repeat their effect look at MessageId, which stays the same over every resend. The order of messages is kept only by a
// queue with SingleActiveConsumer, and by the one handler at a time of a single worker with Concurrency 1 that never fails.
//
// A message whose handler fails goes to the dead-letter queue at the first error; it never goes back to the queue, so it
// cannot spin. Only an error that says "not now" (see Handler) has it tried again. A message that crashes the process again
// and again ends at the queue's DeliveryLimit. Messages that were only waiting in the prefetch of a worker that crashed, or
// up to RabbitMQ 4.2 was stopped or paused, count as delivered too, which is why Prefetch is small by default and begins
// at one.
//
// # Topology
//
// The queue is durable, of type quorum, with x-delivery-limit 20, overflow reject-publish, and at-least-once
// dead-lettering through the default exchange to "<name>.dlq", itself a quorum queue without limits. A classic queue
// (Classic, MaxPriority) has no delivery limit, and failures are copied to the dead-letter queue with a confirm.
//
// The arguments of an existing queue cannot be changed: Move takes its messages to another one, of another type or with
// other arguments, under another name or the same.
//
// Messages stay in the dead-letter queue until somebody takes them out: retry.DeadLetters looks at them and sends them
// back. To have failures tried again first, wrap the handler in a retry.Retrier. Why the broker put one there stands in its
// x-first-death-reason header ("rejected" for a
// failed handler, "delivery_limit", "expired"); the handler's error is in the worker's log under the message id.
//
// Rights that a user needs:
//
//	to declare             configure on the queue and on its dead-letter queue, read on the queue, write on amq.default
//	with DeadLetterExchange   configure, write and read on that exchange and write on the dead-letter queue instead of amq.default
//	with NoDeadLetter         only configure on the queue
//	to produce             write on amq.default
//	to work                read on the queue; a classic queue's failures need write on its dead-letter exchange
//	to Move it             as to declare the new one; configure and read on the old one and on "<name>.moving", write on amq.default
//
// Declaring needs none when Declare is Passive (RabbitMQ 4.2.6 and 4.3.0 want configure, later ones any of the three) or Skip.
// Write on amq.default lets a user publish to every queue: workers with a DeadLetterExchange, or with Passive quorum queues,
// do without it. A missing right is a *reconnect.TopologyError, or the 403 of a publish, that names it; a worker that may not
// read its queue says so in Conn.State and asks again, with backoff.
//
// # Reconnection
//
// Producers wait through reconnects and send again what was not confirmed; workers consume again on fresh channels, with
// the topology declared anew. What was being handled when a connection was lost comes again.
//
// # Errors
//
// Publishing returns the errors of package reconnect. Run returns nil after a shutdown in time, *reconnect.TopologyError
// when the queue exists with other arguments or may not be used, and reconnect.ErrClosed. While a worker cannot consume,
// Conn.State says why.
//
// # Concurrency
//
// Everything is safe for concurrent use. A Worker with Concurrency n holds n channels of the Conn's consuming link and runs
// at most n handlers.
package workqueue
