// Package outbox sends messages that belong to a change in PostgreSQL: they are stored in the transaction that makes the
// change, and a relay publishes them once it has been committed. So a message is never lost because a process died between
// the two, and never sent for a change that was rolled back.
//
//	BEGIN                                          relay (one leads, others stand by)
//	  UPDATE orders …                                │
//	  INSERT INTO outbox … ──> [ table outbox ] ─────┴─ publish ──> [ exchange ]
//	COMMIT, wake                      ^                                 │
//	                                  └────── DELETE ───── confirmed ───┘
//
// A minimal program:
//
//	box, err := outbox.New(pool, outbox.Config{})
//	err = box.Migrate(ctx)
//	err = box.InTx(ctx, func(tx pgx.Tx) error { // after the order's own row
//		return box.Enqueue(ctx, tx, outbox.Message{Exchange: "orders", Key: "order.created", OrderingKey: o.ID, JSON: o})
//	})
//	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Window: 1000})
//	relay, err := outbox.NewRelay(box, pub, outbox.RelayConfig{})
//	err = relay.Run(ctx)
//
// # Guarantees
//
// What was committed is sent, at least once: through crashes of the service, the relay, the broker and the database (as far
// as that one keeps what it has committed), and with the same MessageId every time, by which a consumer knows a repetition
// (package idempotency). A row is deleted only when the broker has confirmed its message and no queue's absence was reported.
//
// First deliveries are in happens-before order per lane: when A was committed before B was enqueued, A is sent first; within a
// transaction the order is that of the calls. So messages of one OrderingKey keep their order if those who enqueue them wait
// for one another, as they do when each first locks the row that the key stands for. A resend after a crash may repeat
// earlier messages. A message that fails steps aside and a parked one is skipped: the others do not wait for it.
//
// Not promised: that a message is sent only once, the order of commits, an order between lanes, an order for messages with
// NotBefore.
//
// # Ways in
//
// Enqueue takes a transaction of pgx or, through SQL, one of database/sql, and EnqueueBatch a pgx.Batch; InTx is for programs
// without a transaction yet. A pool or a connection does not compile as a transaction. Bad messages are refused before any
// SQL, all that is wrong with them at once, and leave the transaction as it was.
//
// Rows may also be written by other programs, with message_id, exchange, routing_key and payload, and if need be properties
// (of the names that AMQP gives them: content_type, correlation_id, …) and headers, which are JSON: texts, booleans, null,
// integers (int64), numbers with a fraction (float64), arrays and objects are what they seem; other kinds have the form
// {"$int32": 7}, {"$bytes": "3q2+7w=="}, {"$time": 1767225600}. Relays find such rows by polling. Do not have a trigger notify:
// a NOTIFY within a transaction makes all commits of the database wait for one another.
//
// # Topology
//
// None is declared on the broker: exchanges and queues are those of the messages' consumers. The relay's user needs the right
// to write to the exchanges (amq.default for messages to a queue by its name).
//
// In the database, PostgreSQL 14 or newer with encoding UTF8, Migrate, or a tool of yours from DDL, makes the table "outbox",
// for each further lane "outbox_1" and so on, and beside them "outbox_retry", "outbox_parked", "outbox_scheduled",
// "outbox_lease", "outbox_archive" and "outbox_schema", which says which were made. The rights that are needed on them:
//
//	Enqueue               INSERT on the lanes' tables and outbox_scheduled
//	a relay               SELECT on all, INSERT, UPDATE and DELETE on all but outbox_schema; with Archive it must own
//	                      outbox_archive, to make its partitions
//	Requeue, Discard      SELECT and DELETE on outbox_parked, INSERT on the lanes' tables
//	Stats                 SELECT on all
//	Migrate               CREATE on the schema; SELECT on outbox_schema when there is nothing to do
//
// The hot tables are only inserted into and deleted from, have one index, and are never locked by a relay. A transaction that
// is open for long elsewhere lets them grow, as it does any table that is deleted from, and slows nothing down.
//
// # Reconnection
//
// An outage of the broker or of the database costs no message an attempt; meanwhile the relay holds no transaction, no lock on
// a row and no snapshot. When the leader's session ends, another relay leads within its PollInterval. A relay that is stopped
// during an outage of the broker stops at once, and one whose Conn is closed ends with it.
//
// # Errors
//
// Faults of a message are permanent errors (Permanent() bool). Errors of the database are returned wrapped, with
// *pgconn.PgError in the chain. What was parked, and why, is listed by Parked; Stats has what to watch, OldestAge first.
//
// # Concurrency
//
// An Outbox is safe for concurrent use, a Relay runs once at a time. Any number of processes may enqueue, and run relays of the
// same outbox.
package outbox
