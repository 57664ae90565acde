package reconnect

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// refusing are the TLS alerts by which a broker says that it does not want this client's certificate, or its settings:
// trying again mends nothing. By RFC 8446 section 6: handshake failure, bad, unsupported, revoked, expired and unknown
// certificate, unknown authority, access denied, protocol version, insufficient security, unrecognized name, certificate
// required.
var refusing = []tls.AlertError{40, 42, 43, 44, 45, 46, 48, 49, 70, 71, 112, 116}

// withAlert adds the tls.AlertError to an error that stands for such an alert: over TCP crypto/tls gives it a type of its own,
// which can only be told by its text.
func withAlert(err error) error {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return err
	}
	for _, alert := range refusing {
		if remote.Err.Error() == alert.Error() {
			return fmt.Errorf("refused by the broker: %w", alert)
		}
	}
	return err
}

// alertTime is how long a failed write waits for the alert that may say why.
const alertTime = 250 * time.Millisecond

// attentive is a TLS connection that remembers how reading ended. From TLS 1.3 on a broker judges the client's certificate
// when the client is done with its handshake already, and may talk. What the client then gets to see first is chance: the
// alert, or the failure of its own next write. So such a write waits for the reader.
type attentive struct {
	*tls.Conn
	once  sync.Once
	ended chan struct{} // closed when a Read has failed
	err   error         // of that Read, read after ended
}

func newAttentive(c *tls.Conn) *attentive { return &attentive{Conn: c, ended: make(chan struct{})} }

func (a *attentive) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	if err != nil {
		a.once.Do(func() {
			a.err = err
			close(a.ended)
		})
	}
	return n, err
}

func (a *attentive) Write(p []byte) (int, error) {
	n, err := a.Conn.Write(p)
	if err != nil {
		select {
		case <-a.ended:
		case <-time.After(alertTime):
		}
	}
	return n, err
}

// refusal returns the alert by which the broker refused the client, or nil.
func (a *attentive) refusal() error {
	select {
	case <-a.ended:
	default:
		return nil
	}
	var alert tls.AlertError
	if err := withAlert(a.err); errors.As(err, &alert) {
		return err
	}
	return nil
}

// errSpeaksTLS is a mistake in the URL.
var errSpeaksTLS = errors.New("the broker expects TLS on this port: the URL has to begin with amqps")

// plain is a connection without TLS that notices when the peer expects some: what the broker then answers is an alert, of which the
// driver says no more than that it is no frame.
type plain struct {
	net.Conn
	seen  bool // something was read
	alert atomic.Bool
}

// Read looks at what comes first: 21 for an alert and 3 for any version of TLS (RFC 8446 section 5.1), while frames begin with 1.
func (c *plain) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.seen && n > 0 {
		c.seen = true
		c.alert.Store(n > 1 && p[0] == 21 && p[1] == 3)
	}
	return n, err
}

func (c *plain) refusal() error {
	if c.alert.Load() {
		return errSpeaksTLS
	}
	return nil
}
