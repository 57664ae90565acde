package idempotency

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/warrenmq/warren/internal/migrate"
)

// The steps that make the tables, "inbox_<version>.sql", templates for the tables' names. What has been released is never
// changed: a newer form is a further step.
//
//go:embed schema/*.sql
var steps embed.FS

func (cfg Config) keys() string  { return migrate.Qualify(cfg.Schema, cfg.Table) }
func (cfg Config) sweep() string { return migrate.Qualify(cfg.Schema, cfg.Table+"_sweep") }

// schema returns the tables of an inbox.
func (cfg Config) schema() migrate.Schema {
	return migrate.Schema{
		Name: cfg.Schema, Versions: cfg.Table + "_schema",
		Units: []migrate.Unit{{Name: "inbox", Steps: cfg.render()}},
	}
}

// render returns the steps in their order. Names and content are the library's own, so nothing here can fail that a test has
// not seen.
func (cfg Config) render() []string {
	var rendered []string
	for version := 1; ; version++ {
		source, err := steps.ReadFile(fmt.Sprintf("schema/inbox_%d.sql", version))
		if err != nil {
			return rendered
		}
		parsed := template.Must(template.New("inbox").Funcs(template.FuncMap{
			"keys": cfg.keys, "sweep": cfg.sweep, "keyType": cfg.keyType,
		}).Parse(string(source)))
		var sql bytes.Buffer
		if err := parsed.Execute(&sql, nil); err != nil {
			panic(fmt.Sprintf("idempotency: schema, version %d: %v", version, err))
		}
		rendered = append(rendered, strings.TrimSpace(sql.String()))
	}
}

func (cfg Config) keyType() string {
	if cfg.UUIDKeys {
		return "uuid"
	}
	return fmt.Sprintf(`text COLLATE "C" CHECK (octet_length(key) BETWEEN 1 AND %d)`, maxKey)
}

// Migrate makes the tables, or brings those of an earlier version up to date: all in one transaction, under an advisory
// lock, so that any number of processes may do it when they start. Tables that are as they should be are only read, which
// takes no right to make any. Tables of a newer version of this library are left alone, and work. It fails when the keys of
// the table are not of the kind that Config.UUIDKeys says.
//
// The database schema named in Config is made if it is missing. No other function makes tables.
func (b *Inbox) Migrate(ctx context.Context) error {
	if b.pool == nil {
		return fmt.Errorf("idempotency: migrate: %w", errNoPool)
	}
	if err := b.cfg.schema().Apply(ctx, b.pool); err != nil {
		return fmt.Errorf("idempotency: migrate: %w", err)
	}
	return b.checkKind(ctx)
}

// checkKind compares the type of the keys.
func (b *Inbox) checkKind(ctx context.Context) error {
	var uuids bool
	err := b.pool.QueryRow(ctx, "SELECT atttypid = 'uuid'::regtype FROM pg_catalog.pg_attribute"+
		" WHERE attrelid = to_regclass($1) AND attname = 'key'", b.cfg.keys()).Scan(&uuids)
	if err != nil {
		return fmt.Errorf("idempotency: migrate: look at the keys of %s: %w", b.cfg.keys(), err)
	}
	if uuids != b.cfg.UUIDKeys {
		return fmt.Errorf("idempotency: migrate: UUIDKeys: %t, but those of %s are not so", b.cfg.UUIDKeys, b.cfg.keys())
	}
	return nil
}

// DDL returns the statements by which Migrate makes the tables from nothing, for a migration tool of the user's own. They
// are for one run; each step is headed by its name and version, so that those of a later version of the library can be
// told. It does no I/O and needs no pool.
func (b *Inbox) DDL() string { return b.cfg.schema().DDL() }
