// Package pg is what outbox and idempotency both need to know of PostgreSQL: a transaction of database/sql in the shape of
// one of pgx, and what an error of the server or of the way to it says about trying again.
package pg
