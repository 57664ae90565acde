package provide

import (
	"context"
	"encoding/base64"
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
// but asks for none; a client that has one may log in with it, under its common name (SASL EXTERNAL), and one that has a
// token with that as its password.
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
		"auth_backends.1 = internal",
		"auth_backends.2 = rabbit_auth_backend_oauth2",
		"auth_oauth2.resource_server_id = " + TokenAudience,
	}
}

// TokenAudience is whom tokens for a TLSNode are for, and the beginning of what they allow: "<TokenAudience>.read:*/*".
const TokenAudience = "warren"

// TLSNode is Node with a TLS listener, whose address is TLSURL. The node also logs in clients by their certificates and, once
// it has been given a key with TokenKey, by OAuth 2 tokens.
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

// TokenKey gives the node the secret, HS256, by which it verifies tokens.
func (r *RabbitMQ) TokenKey(ctx context.Context, key []byte) error {
	return r.Eval(ctx, fmt.Sprintf(`
Key = {map, #{<<"kty">> => <<"oct">>, <<"alg">> => <<"HS256">>, <<"k">> => %s}},
application:set_env(rabbitmq_auth_backend_oauth2, key_config, [{default_key, <<"key">>}, {signing_keys, #{<<"key">> => Key}}]), ok.`,
		Binary(base64.RawURLEncoding.EncodeToString(key))), nil)
}
