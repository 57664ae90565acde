//go:build unix

package provide

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Pooler is a PgBouncer that gives each transaction the next session of a small pool, as many services have in front of
// their database.
type Pooler struct {
	// URL is the address of the database behind it. Without credentials of its own, it lets in whoever dials loopback.
	URL string

	dir     *tempDir
	log     *os.File
	process *process
}

// StartPooler starts the machine's PgBouncer in front of the database at rawURL, with so many sessions.
func StartPooler(ctx context.Context, rawURL string, sessions int) (*Pooler, error) {
	bin, err := findPgBouncer()
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		p, err := startPooler(bin, rawURL, sessions)
		if err != nil {
			return nil, fmt.Errorf("start PgBouncer: %w", err)
		}
		if err = p.wait(ctx); err == nil {
			return p, nil
		}
		err = errors.Join(err, p.Remove())
		if attempt == 3 || !taken.MatchString(err.Error()) { // somebody was faster at the port
			return nil, err
		}
	}
}

// findPgBouncer returns the program, which Debian keeps off the PATH of ordinary users.
func findPgBouncer() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath("/usr/sbin/pgbouncer"); err == nil {
		return path, nil
	}
	return "", ErrNoPooler
}

func startPooler(bin, rawURL string, sessions int) (*Pooler, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Port() == "" {
		return nil, errors.New("the database's URL must have a port")
	}
	free, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	port := free[0]
	dir, err := newTempDir()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir.path, "output"))
	if err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	p := &Pooler{URL: poolerURL(u, port), dir: dir, log: log}
	config, err := dir.write("pgbouncer.ini", poolerConfig(u, port, sessions))
	if err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	credential, err := unprivileged(dir.path, config)
	if err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	cmd := exec.Command(bin, config)
	cmd.Dir, cmd.Env = dir.path, []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if p.process, err = startProcess(cmd, syscall.SIGKILL); err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	return p, nil
}

// poolerURL returns the database's address through the pooler.
func poolerURL(database *url.URL, port int) string {
	u := *database
	u.Host = loopback(port)
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return u.String()
}

// poolerConfig is that of a pooler of transactions. Its clients are let in as the database's account.
func poolerConfig(database *url.URL, port, sessions int) string {
	password, _ := database.User.Password()
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	return fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s password=%s

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
server_idle_timeout = 2
ignore_startup_parameters = extra_float_digits
`, database.Hostname(), database.Port(), quote(database.User.Username()), quote(password), port, sessions)
}

// wait blocks until a query gets through.
func (p *Pooler) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	for {
		err := execPostgres(ctx, p.URL, "SELECT 1")
		if err == nil {
			return nil
		}
		if !p.process.alive() {
			return fmt.Errorf("PgBouncer ended while it started: %s", tail(p.log.Name()))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("PgBouncer does not serve: %w: %w: %s", ctx.Err(), err, tail(p.log.Name()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Remove ends the pooler and all connections through it.
func (p *Pooler) Remove() error {
	var err error
	if p.process != nil {
		err = p.process.kill()
	}
	return errors.Join(err, p.log.Close(), p.dir.remove())
}
