// Package retry tries failed messages of a queue again, later, and keeps in a dead-letter queue what does not succeed.
//
//	              ┌──── after 1 s ──── [ q.retry.1000 ] <──┐
//	[ q ] <───────┼──── after 5 s ──── [ q.retry.5000 ] <──┤ a copy, confirmed,
//	  │           └──── after … ─────── …               <──┤ before the original is acknowledged
//	  └──> handler, wrapped by a Retrier ── failed ────────┤
//	                                                       └──> [ q.dlq ]   given up
//
// It wraps any func(context.Context, amqp.Delivery) error that consumes from a queue: a workqueue worker's, a
// subscriber's, or that of a loop of your own. A minimal program:
//
//	retrier, err := retry.New(ctx, conn, images.Name, retry.Policy{MaxAttempts: 5, InitialDelay: time.Second})
//	worker, err := workqueue.NewWorker(conn, images, retrier.Handle(workqueue.JSON(resize)), workqueue.WorkerConfig{})
//	err = worker.Run(ctx)
//
// and what ends in the dead-letter queue is looked at and sent back with DeadLetters.
//
// # Guarantees
//
// A failed message is in a queue at every moment: its copy is confirmed before the original is acknowledged, and where it
// cannot be confirmed, for whatever reason, the original stays unacknowledged with the worker, which asks again ("not
// now"; its State says why). A crash between the two makes a duplicate with the same MessageId, and nothing else does. An
// outage of the broker or an alarm uses up no attempts and sends nothing to the dead-letter queue.
//
// A delay is never shorter than said. Each has a queue of its own, so that short ones do not wait behind long ones.
//
// A handler sees a message as it was first delivered: exchange, routing key, body, headers, and all properties, with three
// exceptions. It is persistent from its first failure on, has a MessageId and a Timestamp then, and headers that a broker
// had added on the way to its first delivery (x-death and its like) are gone. Its Expiration counts on from the first
// failure: when that has passed the message is not handled any more, but kept in the dead-letter queue. InfoOf tells the
// attempt.
//
// Attempts are counted in a header of our own, since the broker's counts begin anew with each copy, and on 4.0 with each
// upgrade. Our headers are believed only of a message that came through the default exchange (or Policy.DeadLetterExchange)
// under the queue's own name, and within the policy's bounds: who can write there can also skip attempts, or show the handler
// another exchange, routing key or UserId; so no handler should take a UserId for proof that may be written to that way. What
// a process dies of is counted by the broker alone, and ends in the same dead-letter queue at the queue's delivery limit.
//
// # Topology
//
// New declares, quorum and durable: "<queue>.dlq" with no limit but an x-delivery-limit of a million, as every pattern package
// describes it; and for each delay "<queue>.retry.<milliseconds>", with that as x-message-ttl, at-least-once dead-lettering back to the queue, and
// overflow reject-publish. They have neither consumers nor x-expires. A policy that is changed leaves queues behind,
// which empty themselves and may then be deleted. A queue that somebody deletes is made again when a copy finds it missing, and with every
// reconnect. An operator's policy for message TTL or length must not match these names.
//
// A message may come back up to three minutes late: the broker tries so often to move it when the queue is missing, or full
// because it has a MaxLength: leave that out, or leave room. A priority above 4 is taken off a copy while it waits, since
// RabbitMQ 4 would let it hold up others: it comes back with priority 4, though the handler sees the first one.
//
// Rights that a user needs beside those to consume from the queue: configure on the queues named; read on the delay queues,
// to declare where they lead; write on amq.default. With DeadLetterExchange, instead of that last one, all three on that
// exchange, and write on the queues named and on the queue itself, which are bound to it. DeadLetters says what it needs.
//
// # The delayed-message plugin
//
// With Policy.DelayedPlugin the plugin's exchange "<queue>.delayed" holds the copies back instead of queues, each for exactly its
// delay. What that costs, in the plugin's own words: it keeps messages on one node, unreplicated, and they are lost with it or when the plugin is
// disabled; it tries once to deliver, and where the queue is not bound, or full, the message is gone; it is slow beyond some hundred thousand;
// it cannot be had from RabbitMQ 4.3 on. A confirm says only that it has the message, so mandatory is off for these copies. Where
// the plugin is missing, New says so. No broker with the plugin was at hand: the arguments, the header and that error are
// tested, a message's way through it is not.
//
// # Ordered queues
//
// Do not wrap handlers of partitions (routing/consistenthash) or of a single active consumer: a copy would come back behind
// its successors. A Retrier notices, and answers "not now" instead, so that the message blocks its place: the worker tries it again
// until the consumer timeout hands it back, and the delivery limit ends that. Only a permanent failure leaves at once.
//
// # Reconnection
//
// Nothing ends with a connection: copies wait for the link, what was in doubt is sent again with the same MessageId, and the
// topology is declared anew.
//
// # Errors
//
// A handler's error decides. One that is Permanent (by behaviour: a method Permanent() bool) goes to the dead-letter queue
// at once, as does a body that the JSON of the worker's package cannot decode (not one that a handler of yours decodes by
// itself: mark that error with Permanent); After, or a method RetryAfter() time.Duration, names the delay; a method
// NotNow() bool keeps the message where it is, uncounted; anything else, and a panic, costs an attempt. The dead letter says
// which it was.
//
// # Concurrency
//
// Everything is safe for concurrent use. A Retrier starts no goroutines but the copies of a batch, which HandleBatch waits for.
package retry
