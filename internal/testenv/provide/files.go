package provide

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/warrenmq/warren/internal/testenv/secret"
)

// The account of every node started here. Not guest, which RabbitMQ lets in from loopback only, and a container's
// clients come from the engine's bridge.
const nodeUser = "warren"

// nodePassword is this run's own, so that it can be looked for in everything the run writes.
var nodePassword = secret.New()

// What a node has enabled, whoever packaged it: the official image enables management only, Debian's package nothing.
// With management a node boots 1 s and stops 5 s later, so a node that is restarted time and again goes without.
var (
	sharedPlugins = []string{management, "rabbitmq_consistent_hash_exchange"}
	nodePlugins   = []string{"rabbitmq_consistent_hash_exchange"}
	tlsPlugins    = []string{"rabbitmq_auth_mechanism_ssl", "rabbitmq_auth_backend_oauth2"}
)

const management = "rabbitmq_management"

// pluginsFile returns the enabled_plugins file.
func pluginsFile(plugins []string) string { return "[" + strings.Join(plugins, ",") + "].\n" }

// advancedConfig holds what rabbitmq.conf has no key for. A dead-letter worker of a quorum queue tries an unroutable
// message again only after this timeout, 3 minutes unless set: no test can wait that long.
const advancedConfig = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 2000}]}].\n"

// nodeSpec says what a node has beside the usual.
type nodeSpec struct {
	plugins []string
	tls     *TLSFiles // nil: no TLS listener
}

// nodePorts are the ports of one node; management and tls are 0 when it has none.
type nodePorts struct{ amqp, management, tls, eval, dist, epmd int }

// nodeConfig returns rabbitmq.conf for a node that listens on the given address and ports; its files are in dir.
func nodeConfig(address, dir string, p nodePorts) string {
	lines := []string{
		fmt.Sprintf("listeners.tcp.default = %s:%d", address, p.amqp),
		"default_user = " + nodeUser,
		"default_pass = " + nodePassword,
		"default_user_tags.administrator = true",
		"log.console = true",
		"log.console.level = info",
		"log.file = false",
		// The default of 50 MB is taken of whatever disk the temporary directory is on; a full disk is not our subject.
		"disk_free_limit.absolute = 10MB",
		// Several nodes at a time, and on RabbitMQ 4 a fault that fills memory, must not raise an alarm of their own.
		"vm_memory_high_watermark.relative = 0.8",
	}
	if p.management != 0 {
		lines = append(lines, "management.tcp.ip = "+address, fmt.Sprintf("management.tcp.port = %d", p.management))
	}
	if p.tls != 0 {
		lines = append(lines, tlsConfig(address, p.tls, dir)...)
	}
	return strings.Join(lines, "\n") + "\n"
}

// newToken returns a secret for one node's evaluator.
func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
