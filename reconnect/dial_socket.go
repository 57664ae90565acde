package reconnect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
)

// open makes the TCP connection and, for amqps, the TLS one on it. TLS is done here, not by the driver, so that writes
// are gathered above it: records are joined, not only segments.
func (d *dialer) open(ctx context.Context, to address) (net.Conn, error) {
	nc, err := d.connect(ctx, to)
	if err != nil {
		return nil, err
	}
	if d.uri.Scheme != "amqps" {
		return &plain{Conn: nc}, nil
	}
	secure, err := d.secure(ctx, to, nc)
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return secure, nil
}

func (d *dialer) connect(ctx context.Context, to address) (nc net.Conn, err error) {
	if d.cfg.DialContext == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", to.network)
	}
	defer d.recovered("DialContext", &err)
	nc, err = d.cfg.DialContext(ctx, "tcp", to.network)
	if err == nil && nc == nil {
		err = errors.New("DialContext: no connection and no error returned")
	}
	return nc, err
}

func (d *dialer) secure(ctx context.Context, to address, nc net.Conn) (_ net.Conn, err error) {
	defer d.recovered("TLSFunc or what it gave", &err)
	cfg, err := d.tlsConfig(ctx, to.server)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(nc, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake as %q: %w", cfg.ServerName, withAlert(err))
	}
	return newAttentive(secure), nil
}

// recovered, deferred, makes an error of the panic of a function of the user's: nobody else could, in a goroutine of ours.
func (d *dialer) recovered(whose string, err *error) {
	if p := recover(); p != nil {
		d.cfg.Logger.Error("panic in "+whose, "panic", p, "stack", string(debug.Stack()))
		*err = fmt.Errorf("%s: panic: %v", whose, p)
	}
}
