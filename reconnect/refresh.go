package reconnect

import (
	"context"
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

func (l *link) renew(s *session) (expires time.Time, err error) {
	auth, expires, err := l.dialer.credentials(s.life)
	if err != nil {
		return expires, err
	}
	secret := ""
	switch a := auth.(type) {
	case *amqp.PlainAuth:
		secret = a.Password
	case *amqp.AMQPlainAuth:
		secret = a.Password
	default:
		return time.Time{}, nil // a mechanism without a secret
	}
	return expires, s.do(s.life, func(context.Context) error { return s.conn.UpdateSecret(secret, "refresh before expiry") })
}
