//go:build unix

package provide

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// rabbitServers are where packages put the server's start script. Debian's wrapper on PATH comes last: it insists on
// being root or rabbitmq and redirects the output.
var rabbitServers = []string{
	"/usr/lib/rabbitmq/bin/rabbitmq-server",
	"/opt/homebrew/opt/rabbitmq/sbin/rabbitmq-server",
	"/usr/local/opt/rabbitmq/sbin/rabbitmq-server",
}

// findRabbitServer returns the start script of the machine's RabbitMQ.
func findRabbitServer() (string, error) {
	for _, path := range rabbitServers {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return "", fmt.Errorf("no rabbitmq-server on this machine: %w", err)
	}
	return path, nil
}

// localRabbit runs one node and its own epmd, the name server of Erlang nodes, as child processes. With the
// machine's epmd instead, a node would start one as a daemon, and that would outlive it.
type localRabbit struct {
	server string
	dir    *tempDir
	env    []string
	log    *os.File // both children write to it
	epmd   *process
	node   *process
}

// startLocalRabbit starts a node with the machine's RabbitMQ.
func startLocalRabbit(ctx context.Context, spec nodeSpec) (*RabbitMQ, error) {
	server, err := findRabbitServer()
	if err != nil {
		return nil, err
	}
	free, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	ports := nodePorts{amqp: free[0], eval: free[1], dist: free[2], epmd: free[3]}
	if slices.Contains(spec.plugins, management) {
		ports.management = free[4]
	}
	if spec.tls != nil {
		ports.tls = free[5]
	}
	token := newToken()
	m, err := newLocalRabbit(server, spec, ports, token)
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{
		URL:     amqpURL(ports.amqp),
		Kind:    Local,
		eval:    evaluator{address: loopback(ports.eval), token: token},
		machine: m,
	}
	if ports.management != 0 {
		r.ManagementURL = "http://" + loopback(ports.management)
	}
	if ports.tls != 0 {
		r.TLSURL, r.tlsDir = amqpsURL(ports.tls), m.dir.path
	}
	if err := r.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start the machine's RabbitMQ: %w", err), r.Remove())
	}
	return r, nil
}

// resolverConfig lets a node find localhost on a machine without a hosts file, such as a minimal container.
const resolverConfig = `{lookup, [file, native]}.
{host, {127,0,0,1}, ["localhost"]}.
`

// newLocalRabbit lays out the node's directory.
func newLocalRabbit(server string, spec nodeSpec, ports nodePorts, token string) (*localRabbit, error) {
	dir, err := newTempDir()
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"rabbitmq.conf":   nodeConfig("127.0.0.1", dir.path, ports),
		"advanced.config": advancedConfig,
		"enabled_plugins": pluginsFile(spec.plugins),
		"eval.erl":        evalScript,
		"inetrc":          resolverConfig,
	}
	maps.Copy(files, spec.tls.in(""))
	for name, content := range files {
		if _, err := dir.write(name, content); err != nil {
			return nil, errors.Join(err, dir.remove())
		}
	}
	log, err := os.Create(filepath.Join(dir.path, "output"))
	if err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	return &localRabbit{server: server, dir: dir, log: log, env: localEnviron(dir.path, ports, token)}, nil
}

// localEnviron keeps all the node reads and writes inside dir, and all it listens on on loopback.
func localEnviron(dir string, ports nodePorts, token string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + dir, // the cookie is made there
		"LANG=C.UTF-8",
		fmt.Sprintf("RABBITMQ_NODENAME=warren-%d@localhost", ports.amqp),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", ports.amqp),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", ports.dist),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"),
		"RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "enabled_plugins"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_CONFIG_FILES=" + filepath.Join(dir, "conf.d"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(dir, "advanced.config"),
		fmt.Sprintf("ERL_EPMD_PORT=%d", ports.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		`RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} -eval file:script("` +
			filepath.Join(dir, "eval.erl") + `")`,
		"ERL_INETRC=" + filepath.Join(dir, "inetrc"),
		// The start script then becomes the Erlang machine instead of waiting for it, so that signals and the death of
		// this process reach it.
		"RUNNING_UNDER_SYSTEMD=true",
		"WARREN_EVAL_ADDRESS=127.0.0.1",
		fmt.Sprintf("WARREN_EVAL_PORT=%d", ports.eval),
		"WARREN_EVAL_TOKEN=" + token,
	}
}

func (m *localRabbit) start(context.Context) error {
	if m.epmd == nil || !m.epmd.alive() {
		epmd, err := startProcess(m.command("epmd"), syscall.SIGKILL)
		if err != nil {
			return fmt.Errorf("start epmd: %w", err)
		}
		m.epmd = epmd
	}
	// A node holds two descriptors a connection; what a login shell allows (1024) is too few for the larger tests.
	node, err := startProcess(m.command("/bin/sh", "-c",
		`ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -H -n)"; exec "$0"`, m.server), syscall.SIGKILL)
	if err != nil {
		return err
	}
	m.node = node
	return nil
}

func (m *localRabbit) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir = m.env, m.dir.path
	cmd.Stdout, cmd.Stderr = m.log, m.log
	return cmd
}

func (m *localRabbit) stop(context.Context) error {
	if !m.running() {
		return nil
	}
	return m.node.stop(stopTime)
}

func (m *localRabbit) kill() error {
	if !m.running() {
		return nil
	}
	return m.node.kill()
}

func (m *localRabbit) freeze() error { return m.node.signal(syscall.SIGSTOP) }
func (m *localRabbit) thaw() error   { return m.node.signal(syscall.SIGCONT) }
func (m *localRabbit) running() bool { return m.node != nil && m.node.alive() }

func (m *localRabbit) output() string { return tail(m.log.Name()) }

func (m *localRabbit) remove() error {
	err := m.kill()
	if m.epmd != nil {
		err = errors.Join(err, m.epmd.kill())
	}
	return errors.Join(err, m.log.Close(), m.dir.remove())
}

// tail returns the last 16 KiB of a file.
func tail(name string) string {
	content, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-16<<10):])
}
