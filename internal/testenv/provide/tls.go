package provide

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
)

// TLSFiles are what a node with a TLS listener reads, in PEM: the authority by which it judges its clients, and its own
// certificate with the key.
type TLSFiles struct{ Authority, Certificate, Key string }

// Their names in the node's directory.
const (
	authorityFile   = "authority.pem"
	certificateFile = "certificate.pem"
	keyFile         = "key.pem"
)

// in returns the files by their paths in a directory.
func (f *TLSFiles) in(dir string) map[string]string {
	if f == nil {
		return nil
	}
	return map[string]string{
		path.Join(dir, authorityFile): f.Authority, path.Join(dir, certificateFile): f.Certificate, path.Join(dir, keyFile): f.Key,
	}
}

// tlsConfig returns the lines of rabbitmq.conf for a TLS listener beside the plain one. It judges a client's certificate
// but asks for none; a client that has one may log in with it, under its common name (SASL EXTERNAL).
func tlsConfig(address string, port int, dir string) []string {
	return []string{
		fmt.Sprintf("listeners.ssl.default = %s:%d", address, port),
		"ssl_options.cacertfile = " + path.Join(dir, authorityFile),
		"ssl_options.certfile = " + path.Join(dir, certificateFile),
		"ssl_options.keyfile = " + path.Join(dir, keyFile),
		"ssl_options.verify = verify_peer",
		"ssl_options.fail_if_no_peer_cert = false",
		"auth_mechanisms.1 = PLAIN",
		"auth_mechanisms.2 = AMQPLAIN",
		"auth_mechanisms.3 = EXTERNAL",
		"ssl_cert_login_from = common_name",
	}
}

// TLSNode is Node with a TLS listener, whose address is TLSURL. The node logs in clients by their certificates, too.
func (p *Provider) TLSNode(ctx context.Context, files TLSFiles) (*RabbitMQ, error) {
	return first(p.kind.toTry("AMQP_URL"), func(kind Kind) (*RabbitMQ, error) {
		if kind == URL {
			return nil, errors.New("AMQP_URL names a broker whose certificates are not ours")
		}
		return p.startRabbit(ctx, kind, nodeSpec{plugins: tlsPlugins, tls: &files})
	})
}

// ReplaceTLS gives the node other files, which every TLS connection from now on gets to see.
func (r *RabbitMQ) ReplaceTLS(ctx context.Context, files TLSFiles) error {
	if r.tlsDir == "" {
		return errors.New("this broker has no TLS listener of ours")
	}
	var source strings.Builder
	for name, content := range files.in(r.tlsDir) {
		// Deleted first: in a container the file may be another user's, while the directory is the broker's.
		fmt.Fprintf(&source, "_ = file:delete(%s), ok = file:write_file(%[1]s, %s),\n", Binary(name), Binary(content))
	}
	source.WriteString("ssl:clear_pem_cache(), ok.")
	return r.Eval(ctx, source.String(), nil)
}
