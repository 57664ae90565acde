// Package topic leads messages to queues by patterns: routing keys are words with dots between, and each queue says which
// it wants.
//
//	                               order.#
//	                           ┌──────────────────> [ orders ] ── Subscriber, Subscriber
//	Publisher ──> ( events ) ──┤   *.*.eu
//	                           └──────────────────> [ europe ] ── Subscriber
//
// A minimal program:
//
//	events := topic.Exchange{Name: "events"}
//	publisher, err := topic.NewPublisher(conn, events, reconnect.PublisherConfig{})
//	mux := topic.Mux{"order.created.*": topic.JSON(onCreated), "order.cancelled.#": topic.JSON(onCancelled)}
//	orders := topic.Subscription{Exchange: events, Queue: "orders", Patterns: mux.Patterns()}
//	subscriber, err := topic.NewSubscriber(conn, orders, mux.Handle, topic.SubscriberConfig{})
//	go subscriber.Run(ctx)
//	err = publisher.PublishJSON(ctx, "order.created.eu", Order{ID: 42})
//
// # Patterns
//
// A * stands for exactly one word and a # for any number of them, none included; neither stands for a part of a word, so
// "order*" is refused. Words are not empty, a pattern has at most 255 bytes and, since RabbitMQ 4.3.5 takes no more, at
// most two #. Match says what the broker would do with a key.
//
// # Guarantees
//
// A message whose publish returned nil is in every queue that was bound with a matching pattern at that moment, in each of them once,
// however many of its patterns match.
// When there is none, the publish returns a *reconnect.ReturnedError, unless Exchange.Alternate names an exchange that
// leads it to a queue: a key with a typing error is not lost in silence.
//
// A durable subscription (NewSubscriber) handles each message at least once, or it ends in the dead-letter queue, whether
// or not an instance runs when it is published. It may be handled more than once: after a lost connection, or when its
// subscriber died before the acknowledgement arrived. MessageId stays the same over every resend. A live one
// (NewLiveSubscriber) handles what is published while it is connected, drops what its handler fails on, and is told what
// it may have missed: OnGap with both times after each loss of the connection, OnOverflow when its queue was full.
//
// # Bindings of earlier versions
//
// Declaring only adds: a pattern that a new version no longer lists stays bound, and its messages go on coming, until it
// is listed in Obsolete. That may be listed for as long as one likes. Instances of the earlier version that still run
// bind it again whenever they reconnect, so it is gone for good once a new one has started, or reconnected, after the last
// of them. A message whose key matches nothing in a Mux is dead-lettered, so a forgotten one is seen.
//
// # Order
//
// Messages of one PublishBatch, or published one after the other by a caller that waits for each, reach every queue in
// this order, whatever their keys, and one Subscriber with Concurrency 1 that is alone on its queue starts them in this
// order. What comes again after a loss, a hand-back or a resend comes out of its place. Several instances of a group, or
// handlers at once, keep no order over all of them; for order by key see routing/consistenthash.
//
// # Topology
//
// The exchange is a durable topic one. A durable subscription is a quorum queue with x-delivery-limit 20, overflow
// reject-publish, and at-least-once dead-lettering through the default exchange to "<queue>.dlq", itself a quorum queue
// without limits; messages there stay until somebody takes them out. A live one is a classic exclusive queue
// "<exchange>.live.<random>", x-max-length 10,000 with overflow drop-head: a fresh one for each connection, deleted when
// Run returns, and gone with the connection in any case. The alternate exchange is not declared: that is up to whoever
// collects from it.
//
// Rights that a user needs:
//
//	to declare the exchange    configure on it; with Alternate also read on it and write on the alternate
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
// with the topology declared anew, obsolete bindings removed. A live subscription never waits for its old queue: the new
// one has another name.
//
// An exchange that somebody deletes takes its bindings with it. Exchange and bindings are declared again with the
// subscriber's next channel or connection; until then publishes fail (*amqp.Error, 404), and where another program has made
// the exchange anew in between its messages miss the queues, of which no subscription is told.
//
// # Errors
//
// Publishing returns the errors of package reconnect. ErrRefused means that one of the queues is full, and the others have
// the message. Run returns nil after a shutdown in time, *reconnect.TopologyError when something exists with other
// properties or may not be used, and reconnect.ErrClosed. While a subscriber cannot consume, Conn.State says why.
//
// # Concurrency
//
// Everything is safe for concurrent use. A Subscriber with Concurrency n holds n channels of the Conn's consuming link and
// runs at most n handlers.
package topic
