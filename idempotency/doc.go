// Package idempotency lets a handler take effect once, however often its message comes: what it has handled is recorded in
// PostgreSQL, in the transaction in which it does its work.
//
//	          deliver          BEGIN + insert key        work           COMMIT
//	[ queue ] ───────> worker ───────────────────> new? ──────> ok? ───────────> ack
//	    ^                                           │            │
//	    └──── again, when the connection breaks     └ known: ack └ no: ROLLBACK, the key is gone as well
//
// A minimal program:
//
//	inbox, err := idempotency.New(pool, "billing", idempotency.Config{})
//	err = inbox.Migrate(ctx)
//	worker, err := workqueue.NewWorker(conn, payments, retrier.Handle(inbox.Handle(
//		func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error { return book(ctx, tx, d.Body) })),
//		workqueue.WorkerConfig{Concurrency: 8})
//	go inbox.Run(ctx) // removes old keys
//	err = worker.Run(ctx)
//
// # Guarantees
//
// Key and effect are committed together or not at all. So of any number of copies of a message, one after the other or at
// once, in any number of processes, exactly one takes effect in the database, and none is acknowledged before that. A handler
// that fails or panics leaves neither effect nor key. When it is open whether a COMMIT arrived, the message is not
// acknowledged; the next attempt finds out.
//
// That holds for what the handler writes through its transaction, as long as the key is known (Config.Retention, 7 days by
// default). Not covered is what a handler does elsewhere, a mail or a call to another service: put it as a message into the
// outbox of the same transaction. And the key says what "the same message" is: MessageId, by default, is the same when a
// message is delivered, copied or sent again, but not when its sender tells the same fact twice.
//
// The order of messages is not looked at. See StateCheck for handlers that can tell from their object's own state.
//
// # Ways in
//
// Handle, HandleBatch and HandleReply make handlers of functions that get a transaction. Do, DoBatch and DoResult are the
// same without messages. Claim records a key in a transaction of the caller's own, of pgx or database/sql. StateCheck needs
// no table.
//
// # Topology
//
// Two tables, "inbox" and "inbox_sweep", beside the versions of both in "inbox_schema", which Migrate makes, or a tool of
// yours from DDL. One database role needs INSERT and SELECT on the first, for DoResult UPDATE on its columns fingerprint and
// result, and for Run DELETE and UPDATE on the first (rows are locked) and INSERT, SELECT and UPDATE on the second. Rights
// on the broker: none, there is no traffic of the package's own. PostgreSQL 14 or newer.
//
// # Reconnection
//
// A database that is away, restarts, freezes or fails over costs no message: transactions that collided (40001, 40P01,
// 55P03) or lost their connection are tried again whole, three times; what does not pass says NotNow, so that the message
// stays with its worker and comes again, unacknowledged and uncounted. Without a Retrier, too, nothing reaches the dead-letter
// queue for the database's sake. Only a session that freezes in the middle of the handler's own statement holds that handler
// until its context ends. A statement that brings down its session each time looks like an outage: its message stays until
// the consumer hands it back, and ends at the queue's delivery limit.
//
// # Errors
//
// ErrBusy and whatever is wrong with the database say NotNow; ErrNoKey and ErrKeyReused are permanent; the handler's own
// errors are returned as they are. NotNow does the same for transactions of the caller's own, around a Claim. Errors of the
// server are told by their codes, never by texts.
//
// # Concurrency
//
// Everything is safe for concurrent use. A message that is being handled occupies a connection of the pool. A handler may run
// more than once before one of its transactions is committed, so it keeps what it counts in memory out of it.
package idempotency
