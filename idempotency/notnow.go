package idempotency

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/warrenmq/warren/internal/pg"
)

// NotNow marks an error of a transaction of the caller's own, begun around a Claim, as one that says NotNow if it is not about
// the work: the database is away or the connection broke, or the transaction collided with another one (40001, 40P01, 55P03).
// A time that was up counts as that, too: a database that is frozen says no more. Any other error it returns as it is, nil as
// nil. A handler returns the errors of Begin, of its statements and of Commit
// through it: without it an outage of the database would dead-letter the messages that are at work. What Do, Handle and the
// others return needs no marking.
func NotNow(err error) error {
	if err == nil || isNotNow(err) || isPermanent(err) || !pg.Collided(err) && !pg.Away(err) && !broken(err) {
		return err
	}
	return &notNow{err}
}

// broken reports whether err is of a connection, by either driver.
func broken(err error) bool {
	var network net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}
