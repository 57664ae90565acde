package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// Authority is a private certificate authority, which nobody trusts who was not told to.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes one for the test.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, key: newKey(tb)}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.sign(template, template, a.key)
	return a
}

// Pool returns what a client trusts who trusts this authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// PEM returns the authority's own certificate.
func (a *Authority) PEM() string { return encode("CERTIFICATE", a.cert.Raw) }

// Certificate describes what an authority is to vouch for.
type Certificate struct {
	CommonName string
	Hosts      []string // names and addresses of a server
	Expired    bool     // a minute ago
	Early      bool     // good only in half an hour
}

// Issued is a certificate with its key, as Go and as files want them.
type Issued struct {
	TLS       tls.Certificate
	Cert, Key string // PEM
}

// Issue makes a certificate, good for a server and for a client.
func (a *Authority) Issue(c Certificate) Issued {
	a.tb.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: c.CommonName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if c.Expired {
		template.NotAfter = time.Now().Add(-time.Minute)
	}
	if c.Early {
		template.NotBefore = time.Now().Add(30 * time.Minute)
	}
	for _, host := range c.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey(a.tb)
	cert := a.sign(template, a.cert, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.tb.Fatalf("encode a key: %v", err)
	}
	return Issued{TLS: tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert},
		Cert: encode("CERTIFICATE", cert.Raw), Key: encode("PRIVATE KEY", der)}
}

func (a *Authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		a.tb.Fatalf("sign a certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.tb.Fatalf("read a certificate: %v", err)
	}
	return cert
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("make a key: %v", err)
	}
	return key
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails (crypto/rand)
	return n
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
