package pg

import (
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes that are told by name.
const (
	LockNotAvailable     = "55P03" // lock_timeout, NOWAIT
	FailedTransaction    = "25P02" // after an error, until it is rolled back
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
)

// Code returns the SQLSTATE in the chain of err, "" when there is none. Texts are in the server's language and say nothing.
func Code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Collided reports whether a transaction failed only because of others that ran at the same time: it can be tried again,
// whole, at once.
func Collided(err error) bool {
	switch Code(err) {
	case serializationFailure, deadlockDetected, LockNotAvailable:
		return true
	}
	return false
}

// away are the classes and codes by which a server says that it cannot serve now, whatever it was asked. A statement
// timeout (57014) is not among them: the statement may be the one that always takes too long.
var away = []string{
	"08",    // connection exception; poolers too
	"53",    // out of memory, disk or connections
	"58",    // I/O and other errors outside PostgreSQL
	"57P",   // shutting down, starting up, crashed, database dropped, idle session closed
	"25006", // read-only: a standby that was or will be the primary
	"25P03", // idle in transaction for too long
	"25P04", // in transaction for too long
}

// Away reports whether err says that the database cannot be reached or cannot serve, and nothing about what it was asked
// to do. A connection that broke in the middle of a statement may leave an error that does not tell (an EOF, a time that
// was up): ask the connection whether it is closed as well.
func Away(err error) bool {
	var server *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &server):
		return fatal(server) || slices.ContainsFunc(away, func(p string) bool { return strings.HasPrefix(server.Code, p) })
	case errors.As(err, &connect):
		return true
	}
	return errors.Is(err, pgconn.ErrConnClosed)
}

// fatal reports whether the session ended with err.
func fatal(err *pgconn.PgError) bool {
	return err.SeverityUnlocalized == "FATAL" || err.SeverityUnlocalized == "PANIC"
}
