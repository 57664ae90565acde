package reconnect

import (
	"context"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
)

// leastRefresh is the shortest pause between two questions to Credentials about one connection.
const leastRefresh = time.Second

// refresh sends new credentials over the living connection before the old ones expire. When the provider fails it is
// asked again; when the broker refuses, it ends the connection, and the link dials with fresh ones.
func (l *link) refresh(s *session, expires time.Time) {
	retry := backoff.NewCounter(backoff.Policy{Min: leastRefresh, Max: 30 * time.Second})
	wait := untilRefresh(expires)
	for !expires.IsZero() && backoff.Sleep(s.life, wait) == nil {
		next, err := l.renew(s)
		if s.life.Err() != nil {
			return
		}
		if err != nil {
			wait = max(retry.Next(), leastRefresh)
			l.log.Error("refreshing credentials failed", "error", err, "next", wait)
			continue
		}
		retry.Reset()
		expires, wait = next, untilRefresh(next)
	}
}

// untilRefresh is two thirds of what is left until the credentials expire.
func untilRefresh(expires time.Time) time.Duration {
	return max(time.Until(expires)*2/3, leastRefresh)
}

// renew asks for credentials no longer than a dial does: a provider that hangs is asked again before they expire.
func (l *link) renew(s *session) (expires time.Time, err error) {
	ctx, cancel := context.WithTimeout(s.life, l.dialer.cfg.DialTimeout)
	defer cancel()
	auth, expires, err := l.dialer.credentials(ctx)
	if err != nil {
		return expires, err
	}
	secret, has := secretOf(auth)
	if !has {
		return time.Time{}, nil
	}
	return expires, s.do(s.life, func(context.Context) error { return s.conn.UpdateSecret(secret, "refresh before expiry") })
}

// secretOf returns the secret of an authentication, if its mechanism has one. A type of the user's own says it in its answer
// (RFC 4616: authorization, user and password, with a NUL between them).
func secretOf(auth amqp.Authentication) (secret string, has bool) {
	switch a := auth.(type) {
	case *amqp.PlainAuth:
		return a.Password, true
	case *amqp.AMQPlainAuth:
		return a.Password, true
	}
	if auth.Mechanism() != "PLAIN" {
		return "", false
	}
	parts := strings.SplitN(auth.Response(), "\x00", 3)
	if len(parts) < 3 {
		return "", false
	}
	return parts[2], true
}
