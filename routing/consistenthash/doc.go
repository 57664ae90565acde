// Package consistenthash keeps the order of messages that have the same key and handles different keys in parallel: bookings, accounts,
// devices, whatever must see its own events one after the other.
//
//	                       ┌─ key, hashed ─> [ name.000 ] ── one active consumer
//	Publisher ──> ( name ) ┼───────────────> [ name.001 ] ── one active consumer     failed: [ name.dlq ]
//	                       └───────────────> [ name.002 ] ── one active consumer
//
// A minimal program:
//
//	bookings := consistenthash.Partitions{Name: "bookings", Count: 8}
//	pub, err := consistenthash.NewPublisher(conn, bookings, reconnect.PublisherConfig{})
//	err = pub.PublishJSON(ctx, "b-17", Change{"b-17", "cancel"})
//	c, err := consistenthash.NewConsumer(conn, bookings, consistenthash.JSON(apply), consistenthash.ConsumerConfig{})
//	err = c.Run(ctx)
//
// # Guarantees
//
// A message whose publish returned nil is handled at least once, or ends in the dead-letter queue. Messages of one key that were
// published one after the other, each when the one before was confirmed, or in one batch, are begun in that order, whatever instance
// handles them, also when instances come, go and crash. A message may be handled again: the last one that was begun, or with a larger
// Prefetch one of the last few, and then those after it follow again, too.
//
// A key is never split: its messages are handled one at a time, together with those of all keys of its partition. One that has most of
// the messages makes its partition the slowest; Consumer.Counts shows it, and more partitions do not help.
//
// After a lost connection the broker gives a message to another instance while the handler that was cut off may still be inside; its
// context ends with the reason, but what it does between is not undone. Where two at once would do harm, write in a transaction that
// checks something which only grows per key: a version, or the number of the last event applied.
//
// # Failures
//
// A failed message stays where it is and is tried again there, up to MaxAttempts times, and is then dead-lettered: the key goes on
// without it. A handler whose later messages make no sense without the failed one remembers the key, and returns errors for it. Do not
// wrap the handler of partitions in package retry: its delayed copy would come behind later messages. A Retrier sees that it is on a
// partition and answers "not now", so the message is kept until the consumer timeout and ends, returned again and again, at the delivery
// limit. What is in the dead-letter queue is sent again by publishing it with its key, the header "warren-key": behind whatever that key
// has by then.
//
// # Instances
//
// Every instance waits in line at every partition, and the broker gives a partition to the first in line: what an instance leaves goes on
// at once with the next one (what one on a dead host leaves, within three heartbeats). Instances also hold a consumer on
// "<name>.partitions" each, count themselves by it every few seconds, and whoever is active on more than Count / instances, rounded up,
// gives the rest back, between two messages. Once all have their share nothing moves. An instance knows that it is active on a partition
// by having received a message from it; partitions without messages count for nobody. So a partition that wakes up may move once.
//
// # Hash in the publisher, or in the broker
//
// By default the publisher hashes: FNV-1a with 64 bits of the key, then a jump consistent hash, and sends to a direct exchange with the
// name of the partition's queue as routing key. That needs no plugin, and a key stays in its partition until Resize. A program that is
// not in Go may do the same, and puts the key into the header "warren-key": handlers see it as the routing key, and Resize goes by it.
//
// With Plugin the broker's x-consistent-hash exchange does it, for publishers that are not in Go and know only a key. Take it only if
// you need that: the broker builds its hash ring anew when it starts. With these quorum queues, four of them bound in
// order with equal weights, 300 of 400 keys were in another partition after a restart of RabbitMQ 3.10.8 and of 4.0.5, which both keep
// their metadata in Mnesia: messages published before and after it may then be handled in any order. The same happens to keys when a partition
// queue is deleted. The plugin has to be enabled: rabbitmq-plugins enable rabbitmq_consistent_hash_exchange. Where it is not, publishing and
// Run say so; that is found out on a connection of its own, since some brokers close it.
//
// # Topology
//
// A durable exchange; Count quorum queues with a single active consumer, delivery limit 20, overflow reject-publish and at-least-once
// dead-lettering to "<name>.dlq"; one binding each. Count is stored as x-max-length of the classic queue "<name>.partitions", which
// holds no messages and is declared before anything else; who comes with another Count gets ErrCountChanged and changes nothing.
// On a cluster that queue lives on one node: while it is away nobody can begin to publish or consume, and those who have begun go on.
//
// Rights that a user needs:
//
//	to declare                configure on all of these, write and read on the partitions' queues, read on the exchange, write on
//	                          amq.default
//	with DeadLetterExchange   configure, write and read on that and write on "<name>.dlq" instead of amq.default
//	to publish                write on the exchange
//	to consume                read on the partitions' queues and on "<name>.partitions"
//
// Declaring needs none when Declare is Passive (RabbitMQ 4.2.6 and 4.3.0 want configure, later ones any of the three) or Skip.
// A missing right is a *reconnect.TopologyError, or the 403 of a publish, that names it; a consumer that may not read its
// queues says so in Conn.State and asks again, with backoff.
//
// # Reconnection
//
// Publishers wait through reconnects and send again what was not confirmed; consumers go back in line at every partition. What was being
// handled when a connection was lost comes again.
//
// # Errors
//
// Publishing returns the errors of package reconnect, and ErrCountChanged. Run returns nil after a shutdown in time, ErrCountChanged,
// *reconnect.TopologyError when something exists with other arguments or may not be used, and reconnect.ErrClosed.
//
// # Concurrency
//
// Everything is safe for concurrent use. A Consumer holds Count + 1 channels of the Conn's consuming link and runs at most one handler
// for each partition.
package consistenthash
