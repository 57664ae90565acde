// Package pubsub announces events: every subscriber gets a copy of each. It is the way to tell whoever wants to know,
// without knowing who that is.
//
//	                              ┌──> [ billing.orders ]  ── Subscriber, Subscriber   one group shares, misses nothing
//	Publisher ──> ( exchange ) ───┼──> [ mail.orders ]     ── Subscriber               another group, its own copies
//	                              └──> [ fresh name ]      ── live Subscriber          this instance, from now on
//
// A minimal program:
//
//	orders := pubsub.Exchange{Name: "orders"}
//	publisher, err := pubsub.NewPublisher(conn, orders, reconnect.PublisherConfig{})
//	err = publisher.PublishJSON(ctx, Order{ID: 42})
//	billing := pubsub.Subscription{Exchange: orders, Queue: "billing.orders"}
//	subscriber, err := pubsub.NewSubscriber(conn, billing, pubsub.JSON(book), pubsub.SubscriberConfig{})
//	err = subscriber.Run(ctx)
//
// # Guarantees
//
// A message whose publish returned nil is in the queue of every subscription that was bound at that moment.
//
// A durable subscription (NewSubscriber) handles each of them at least once, or they end in its dead-letter queue, whether
// or not an instance runs when they are published. It begins when its queue is first declared: declare its Topology
// before the first publish when the publisher may be earlier. A message may be handled more than once: after a lost
// connection, or when its subscriber died before the acknowledgement arrived. MessageId stays the same over every resend.
//
// A live subscription (NewLiveSubscriber) handles what is published while it is connected, at most until its queue is
// full, and drops what its handler fails on: for what is worthless later, a cache to be cleared, a screen to be updated.
// What it may have missed it is told: OnGap with both times after each loss of the connection, OnOverflow when its queue
// was full. When only a channel is lost nothing is missed.
//
// A message that nobody subscribes to is gone and its publish a success, unless Exchange.Mandatory is set.
//
// # Order
//
// Messages of one PublishBatch, or published one after the other by a caller that waits for each, reach every queue in
// this order, and one Subscriber with Concurrency 1 that is alone on its queue starts them in this order. What comes again
// after a loss, a hand-back or a resend comes out of its place. Several instances of a group, or handlers at once, keep
// no order over all of them; for order by key see routing/consistenthash.
//
// # Topology
//
// The exchange is a durable fanout. A durable subscription is a quorum queue with x-delivery-limit 20, overflow
// reject-publish, and at-least-once dead-lettering through the default exchange to "<queue>.dlq", itself a quorum queue
// without limits; messages there stay until somebody takes them out. A live one is a classic exclusive queue
// "<exchange>.live.<random>", x-max-length 10,000 with overflow drop-head: a fresh one for each connection, deleted when
// Run returns, and gone with the connection in any case. Nothing is ever transient and shared.
//
// Rights that a user needs:
//
//	to declare the exchange    configure on it
//	to publish                 write on the exchange
//	to declare a durable       configure, write and read on its queue, configure on its dead-letter queue, read on the exchange,
//	subscription               write on amq.default
//	with DeadLetterExchange    configure, write and read on that and write on the dead-letter queue instead of amq.default
//	to handle a durable one    read on its queue
//	a live subscription        configure, write and read on "<exchange>.live.*", read on the exchange
//
// Declaring needs none when Declare is Passive (RabbitMQ 4.2.6 and 4.3.0 want configure, later ones any of the three) or Skip.
// A missing right is a *reconnect.TopologyError, or the 403 of a publish, that names it; a subscriber that may not read its
// queue says so in Conn.State and asks again, with backoff.
//
// # Reconnection
//
// Publishers wait through reconnects and send again what was not confirmed; subscribers consume again on fresh channels,
// with the topology declared anew. A live subscription never waits for its old queue, which the broker may hold for a
// while yet: the new one has another name.
//
// An exchange that somebody deletes takes its bindings with it. Exchange and bindings are declared again with the
// subscriber's next channel or connection; until then publishes fail (*amqp.Error, 404), and where another program has made
// the exchange anew in between its messages miss the queues, of which no subscription is told.
//
// # Errors
//
// Publishing returns the errors of package reconnect. ErrRefused means that one subscription's queue is full, and the
// others have the message. Run returns nil after a shutdown in time, *reconnect.TopologyError when something exists with
// other properties or may not be used, and reconnect.ErrClosed. While a subscriber cannot consume, Conn.State says why.
//
// # Concurrency
//
// Everything is safe for concurrent use. A Subscriber with Concurrency n holds n channels of the Conn's consuming link and
// runs at most n handlers; OnGap runs before the first of them, OnOverflow beside them.
package pubsub
