package idempotency

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

// StateCheck makes a Handler of h without a table of keys: h looks at the object that the message is about, and at the object
// alone, to tell whether the work is done. It is called in a transaction with the default isolation level, which is
// committed when h returns nil, and rolled back when it returns an error; ErrDone is a success. All else is as for
// Inbox.Handle: collisions and lost connections have h called again, the acknowledgement follows the commit, a database that
// is away is "not now".
//
// Two ways to look are right. Under a lock, so that copies of the message wait for one another:
//
//	SELECT state FROM orders WHERE id = $1 FOR UPDATE   -- no row: not there yet, an error
//	if state is not "open": return ErrDone
//	UPDATE orders SET state = 'paid' WHERE id = $1
//
// Or by a version that the message carries, which also passes over messages that a newer one has overtaken:
//
//	UPDATE orders SET state = $2, version = $3 WHERE id = $1 AND version < $3
//	if no row was affected: return ErrDone              -- if a missing row can be ruled out
//
// A SELECT without FOR UPDATE, followed by an UPDATE that does not ask again, is wrong: two copies both find the order open.
// It suits handlers that change one object, whose state says which messages it has seen. Adding to a balance does not: the
// sum says nothing about the summands. Then use an Inbox.
//
// StateCheck of a nil h or pool is nil, which the constructors of consumers refuse.
func StateCheck(pool *pgxpool.Pool, h func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error) Handler {
	if h == nil || pool == nil {
		return nil
	}
	r := runner{pool: pool, openTime: openTime}
	return func(ctx context.Context, d amqp.Delivery) error {
		err := r.run(ctx, job{body: func(ctx context.Context, tx pgx.Tx) error { return h(ctx, tx, d) }})
		if isDone(err) {
			return nil
		}
		return err
	}
}
