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

// Postgres is a PostgreSQL server: one that was started here, or one at an address.
type Postgres struct {
	// URL is the address of a database on it, with an account that may create others.
	URL string

	host host // nil unless started by this process
}

// Remove ends the server and deletes its data. It does nothing for one this process did not start.
func (p *Postgres) Remove() error {
	if p.host == nil {
		return nil
	}
	return p.host.remove()
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
	return &Postgres{URL: rawURL}, nil
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
		if !p.host.running() {
			return fmt.Errorf("PostgreSQL ended while it started: %s", p.host.output())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not serve: %w: %w: %s", ctx.Err(), err, p.host.output())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
