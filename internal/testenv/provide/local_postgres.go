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
	"syscall"

	"github.com/warrenmq/warren/internal/testenv/secret"
	"time"
)

// localPostgres runs a server as a child process.
type localPostgres struct {
	dir    *tempDir
	log    *os.File
	server *process
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
	p := &Postgres{URL: postgresURL(free[0], password), host: m}
	if err := p.wait(ctx); err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	return p, nil
}

// bootLocalPostgres makes a cluster and starts the server. Nothing is synced to the disk: only a crash of the whole
// machine would show the difference.
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
	initdb := m.command(ctx, credential, filepath.Join(bin, "initdb"), "-D", data, "-U", postgresUser,
		"-A", "scram-sha-256", "--pwfile="+secret, "-E", "UTF8", "--no-locale", "--no-sync")
	if err := initdb.Run(); err != nil {
		return nil, errors.Join(fmt.Errorf("initdb: %w: %s", err, m.output()), m.remove())
	}
	// The server outlives ctx, which is for the start only.
	server := m.command(context.WithoutCancel(ctx), credential, filepath.Join(bin, "postgres"), "-D", data,
		"-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=off", "-c", "max_connections=300")
	if m.server, err = startProcess(server, syscall.SIGQUIT); err != nil {
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

func (m *localPostgres) command(ctx context.Context, as *syscall.Credential, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = m.dir.path
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
	cmd.Stdout, cmd.Stderr = m.log, m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	return cmd
}

func (m *localPostgres) running() bool  { return m.server != nil && m.server.alive() }
func (m *localPostgres) output() string { return tail(m.log.Name()) }

// remove has the server end at once, with all its backends: each is a process group of its own, so that killing the
// server's would leave them.
func (m *localPostgres) remove() error {
	var err error
	if m.running() {
		err = ignoreDone(m.server.signal(syscall.SIGQUIT))
		select {
		case <-m.server.done:
		case <-time.After(stopTime):
			err = errors.Join(err, m.server.kill())
		}
	}
	return errors.Join(err, m.log.Close(), m.dir.remove())
}
