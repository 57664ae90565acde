package provide

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// postgresUser owns every server started here, with a password of its own each.
const postgresUser = "warren"

// Postgres is a PostgreSQL server: one that was started here, one a parent process handed down, or one at an address. Its
// methods are safe for concurrent use, except those that start and stop the server.
type Postgres struct {
	// URL is the address of a database on it, with an account that may create others.
	URL string
	// Kind is who provided it.
	Kind Kind

	machine machine         // nil unless started by this process
	signals backendSignaler // nil where no backend can be stopped
	owner   *Provider       // ended with the server; nil unless the provider is this server's alone
	made    string          // a database on somebody else's server that goes with this; "" for none
}

// backendSignaler sends signals to single processes of a server.
type backendSignaler interface {
	// signalBackend sends the signal of that name, such as STOP, to the process that the server knows by pid.
	signalBackend(ctx context.Context, pid int, signal string) error
}

// errNotOurDatabase is returned when a server is to be started or stopped that this process did not start.
var errNotOurDatabase = errors.New("this process did not start the database")

// Remove ends the server and deletes its data. It does nothing for one this process did not start.
func (p *Postgres) Remove() error {
	if p.owner != nil {
		owner := p.owner
		p.owner = nil
		return errors.Join(p.dropMade(), owner.Close()) // which removes this server
	}
	if p.machine == nil {
		return nil
	}
	return p.machine.remove()
}

func (p *Postgres) dropMade() error {
	if p.made == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	return p.DropDatabase(ctx, p.made)
}

// Start boots the server again after Stop or Crash, with its data and under the URL it had, and waits until it serves.
func (p *Postgres) Start(ctx context.Context) error {
	if p.machine == nil {
		return errNotOurDatabase
	}
	if err := p.machine.start(ctx); err != nil {
		return err
	}
	return p.wait(ctx)
}

// Stop ends the server in good order: its clients get 57P01, what they had not committed is rolled back.
func (p *Postgres) Stop(ctx context.Context) error {
	if p.machine == nil {
		return errNotOurDatabase
	}
	return p.machine.stop(ctx)
}

// Crash ends the server at once, frozen or not: connections end without a word, and the next start recovers from the WAL.
func (p *Postgres) Crash() error {
	if p.machine == nil {
		return errNotOurDatabase
	}
	return p.machine.kill()
}

// Freeze stops all processes of the server where they are: sockets stay open and nothing answers. Thaw ends that.
func (p *Postgres) Freeze() error {
	if p.machine == nil {
		return errNotOurDatabase
	}
	return p.machine.freeze()
}

// Thaw ends Freeze.
func (p *Postgres) Thaw() error {
	if p.machine == nil {
		return errNotOurDatabase
	}
	return p.machine.thaw()
}

// Running reports whether the server's processes are there, frozen or not.
func (p *Postgres) Running() bool { return p.machine != nil && p.machine.running() }

// CanSignal reports whether FreezeBackend and ThawBackend are to be had.
func (p *Postgres) CanSignal() bool { return p.signals != nil }

// FreezeBackend stops the process behind a session, as pg_backend_pid() names it: its socket stays open, the locks it has
// stay held, and it answers nothing. All other sessions go on.
func (p *Postgres) FreezeBackend(ctx context.Context, pid int) error {
	return p.signal(ctx, pid, "STOP")
}

// ThawBackend ends FreezeBackend.
func (p *Postgres) ThawBackend(ctx context.Context, pid int) error { return p.signal(ctx, pid, "CONT") }

func (p *Postgres) signal(ctx context.Context, pid int, signal string) error {
	if p.signals == nil {
		return errNotOurDatabase
	}
	return p.signals.signalBackend(ctx, pid, signal)
}

// CreateDatabase makes an empty database and returns its URL.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (string, error) {
	u, err := url.Parse(p.URL)
	if err != nil {
		return "", errors.New("the database's URL cannot be parsed")
	}
	if err := execPostgres(ctx, p.URL, "CREATE DATABASE "+quoteName(name)); err != nil {
		return "", fmt.Errorf("create database %q: %w", name, err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// DropDatabase deletes a database and ends the sessions that are in it.
func (p *Postgres) DropDatabase(ctx context.Context, name string) error {
	if err := execPostgres(ctx, p.URL, "DROP DATABASE IF EXISTS "+quoteName(name)+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %q: %w", name, err)
	}
	return nil
}

// postgresURL returns the URL of the first database of a server started here.
func postgresURL(port int, password string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(postgresUser, password), Host: loopback(port),
		Path: "/postgres", RawQuery: "sslmode=disable",
	}
	return u.String()
}

// postgresAt returns the server at a URL that somebody else runs.
func postgresAt(rawURL string) (*Postgres, error) {
	if rawURL == "" {
		return nil, errors.New("DATABASE_URL is not set")
	}
	return &Postgres{URL: rawURL, Kind: URL}, nil
}

// serve waits for a new server and has it sync nothing to the disk: only a crash of the whole machine would show the
// difference. It is a setting that a benchmark of commits can take back, as one of the command line is not.
func (p *Postgres) serve(ctx context.Context) error {
	if err := p.wait(ctx); err != nil {
		return err
	}
	for _, sql := range []string{"ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"} {
		if err := execPostgres(ctx, p.URL, sql); err != nil {
			return fmt.Errorf("PostgreSQL: %s: %w", sql, err)
		}
	}
	return nil
}

// wait blocks until the server answers a query.
func (p *Postgres) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	for {
		err := execPostgres(ctx, p.URL, "SELECT 1")
		if err == nil {
			return nil
		}
		if !p.machine.running() {
			return fmt.Errorf("PostgreSQL ended while it started: %s", p.machine.output())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not serve: %w: %w: %s", ctx.Err(), err, p.machine.output())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
