package reconnect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// tlsConfig returns a configuration of this dial's own: the driver and crypto/tls would otherwise share one whose server
// name is that of another host.
func (d *dialer) tlsConfig(ctx context.Context, server string) (*tls.Config, error) {
	cfg := d.cfg.TLS
	if d.cfg.TLSFunc != nil {
		var err error
		if cfg, err = d.cfg.TLSFunc(ctx); err != nil {
			return nil, fmt.Errorf("TLSFunc: %w", err)
		}
	}
	if cfg == nil {
		var err error
		if cfg, err = d.tlsFromURL(); err != nil {
			return nil, err
		}
	}
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = server
	}
	ownVerification(cfg)
	return cfg, nil
}

// ownVerification gives what the user's own functions say against a certificate the type that crypto/tls gives to what it says
// itself, so that it is known for a refusal.
func ownVerification(cfg *tls.Config) {
	if verify := cfg.VerifyPeerCertificate; verify != nil {
		cfg.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error { return refused(verify(raw, chains), nil) }
	}
	if verify := cfg.VerifyConnection; verify != nil {
		cfg.VerifyConnection = func(s tls.ConnectionState) error { return refused(verify(s), s.PeerCertificates) }
	}
}

func refused(err error, certificates []*x509.Certificate) error {
	if err == nil {
		return nil
	}
	return &tls.CertificateVerificationError{UnverifiedCertificates: certificates, Err: err}
}

// tlsFromURL reads the certificate files that the URL's query names.
func (d *dialer) tlsFromURL() (*tls.Config, error) {
	cfg := &tls.Config{ServerName: d.uri.ServerName, MinVersion: tls.VersionTLS12}
	if d.uri.CACertFile != "" {
		pem, err := os.ReadFile(d.uri.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("cacertfile: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cacertfile: no certificate in %s", d.uri.CACertFile)
		}
	}
	if (d.uri.CertFile == "") != (d.uri.KeyFile == "") {
		return nil, errors.New("certfile and keyfile: one without the other")
	}
	if d.uri.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(d.uri.CertFile, d.uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certfile: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
