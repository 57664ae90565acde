//go:build unix

package provide

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/warrenmq/warren/internal/testenv/secret"
	"time"
)

// localPostgres runs a server as a child process.
type localPostgres struct {
	dir     *tempDir
	log     *os.File
	command func() *exec.Cmd // runs the server with its data
	server  *process
}

// findPostgres returns the folder of initdb and postgres, of the highest major version. Debian keeps them off PATH.
func findPostgres() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	major := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	slices.SortFunc(dirs, func(a, b string) int { return major(b) - major(a) })
	if len(dirs) > 0 {
		return filepath.Dir(dirs[0]), nil
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		return "", fmt.Errorf("no PostgreSQL server on this machine: %w", err)
	}
	return filepath.Dir(path), nil
}

// startLocalPostgres starts a server with the machine's PostgreSQL, in a fresh directory.
func startLocalPostgres(ctx context.Context) (*Postgres, error) {
	bin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	free, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	password := secret.New()
	m, err := bootLocalPostgres(ctx, bin, free[0], password)
	if err != nil {
		return nil, fmt.Errorf("start the machine's PostgreSQL: %w", err)
	}
	p := &Postgres{URL: postgresURL(free[0], password), Kind: Local, machine: m, signals: localBackends{}}
	if err := p.serve(ctx); err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	return p, nil
}

// bootLocalPostgres makes a cluster and starts the server.
func bootLocalPostgres(ctx context.Context, bin string, port int, password string) (*localPostgres, error) {
	dir, err := newTempDir()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir.path, "output"))
	if err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	m := &localPostgres{dir: dir, log: log}
	secret, err := dir.write("password", password)
	if err != nil {
		return nil, errors.Join(err, m.remove())
	}
	credential, err := unprivileged(dir.path, secret)
	if err != nil {
		return nil, errors.Join(err, m.remove())
	}
	data := filepath.Join(dir.path, "data")
	initdb := m.program(ctx, credential, filepath.Join(bin, "initdb"), "-D", data, "-U", postgresUser,
		"-A", "scram-sha-256", "--pwfile="+secret, "-E", "UTF8", "--no-locale", "--no-sync")
	if err := initdb.Run(); err != nil {
		return nil, errors.Join(fmt.Errorf("initdb: %w: %s", err, m.output()), m.remove())
	}
	m.command = func() *exec.Cmd {
		// The server outlives ctx, which is for the start only.
		return m.program(context.WithoutCancel(ctx), credential, filepath.Join(bin, "postgres"), "-D", data,
			"-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
			"-c", "max_connections=300")
	}
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(err, m.remove())
	}
	return m, nil
}

// unprivileged returns the account that initdb and postgres run under when this process is root, which both refuse to
// be, and gives it the paths. It returns nil when this process is not root.
func unprivileged(paths ...string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if err := os.Chown(path, int(uid), int(gid)); err != nil {
			return nil, err
		}
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (m *localPostgres) program(ctx context.Context, as *syscall.Credential, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = m.dir.path
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
	cmd.Stdout, cmd.Stderr = m.log, m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	return cmd
}

func (m *localPostgres) running() bool  { return m.server != nil && m.server.alive() }
func (m *localPostgres) output() string { return tail(m.log.Name()) }

func (m *localPostgres) start(context.Context) (err error) {
	m.server, err = startProcess(m.command(), syscall.SIGQUIT)
	return err
}

// stop is PostgreSQL's fast shutdown.
func (m *localPostgres) stop(context.Context) error { return m.end(syscall.SIGINT) }

// kill is the immediate one: the backends end with the server, each of which a SIGKILL of the server's group would leave,
// as they are groups of their own.
func (m *localPostgres) kill() error {
	if m.running() {
		_ = m.thaw() // who is stopped hears no other signal
	}
	return m.end(syscall.SIGQUIT)
}

func (m *localPostgres) end(sig syscall.Signal) error {
	if !m.running() {
		return nil
	}
	err := ignoreDone(m.server.signal(sig))
	select {
	case <-m.server.done:
	case <-time.After(stopTime):
		err = errors.Join(err, m.server.kill())
	}
	return err
}

// freeze stops the server before its children, so that no new ones come.
func (m *localPostgres) freeze() error { return m.signalAll(syscall.SIGSTOP) }
func (m *localPostgres) thaw() error   { return m.signalAll(syscall.SIGCONT) }

func (m *localPostgres) signalAll(sig syscall.Signal) error {
	if err := m.server.signal(sig); err != nil {
		return err
	}
	children, err := childrenOf(m.server.pid)
	for _, pid := range children {
		err = errors.Join(err, ignoreDone(syscall.Kill(pid, sig)))
	}
	return err
}

// remove has the server end at once, with all its backends.
func (m *localPostgres) remove() error {
	return errors.Join(m.kill(), m.log.Close(), m.dir.remove())
}

// childrenOf returns the processes that a process has started and not yet waited for.
func childrenOf(parent int) ([]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	var children []int
	for line := range strings.Lines(string(out)) {
		var pid, ppid int
		if _, err := fmt.Sscan(line, &pid, &ppid); err == nil && ppid == parent {
			children = append(children, pid)
		}
	}
	return children, nil
}

// localBackends are processes of this machine, whichever process of ours started their server.
type localBackends struct{}

func (localBackends) signalBackend(_ context.Context, pid int, signal string) error {
	if pid <= 1 {
		return fmt.Errorf("no backend has pid %d", pid)
	}
	sig := syscall.SIGCONT
	if signal == "STOP" {
		sig = syscall.SIGSTOP
	}
	return syscall.Kill(pid, sig)
}
