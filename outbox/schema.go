package outbox

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/warrenmq/warren/internal/migrate"
)

// The steps that make the tables, "<unit>_<version>.sql", templates for the tables' names. What has been released is never
// changed: a newer form is a further step.
//
//go:embed schema/*.sql
var steps embed.FS

// schemaOf returns the tables of an outbox: those that there is one of, and one for each of n lanes.
func schemaOf(t tables, n int) migrate.Schema {
	s := migrate.Schema{Name: t.schema, Versions: t.base + "_" + versionsSuffix}
	s.Units = append(s.Units, migrate.Unit{Name: "shared", Steps: t.render("shared", 0)})
	for lane := range n {
		s.Units = append(s.Units, migrate.Unit{Name: fmt.Sprintf("lane %d", lane), Steps: t.render("lane", lane)})
	}
	return s
}

// render returns the steps of a unit in their order. Names and content are the library's own, so nothing here can fail
// that a test has not seen.
func (t tables) render(unit string, lane int) []string {
	var rendered []string
	for version := 1; ; version++ {
		source, err := steps.ReadFile(fmt.Sprintf("schema/%s_%d.sql", unit, version))
		if err != nil {
			return rendered
		}
		parsed := template.Must(template.New(unit).Funcs(template.FuncMap{
			"table": t.side,
			"lane":  func() string { return t.lane(lane) },
		}).Parse(string(source)))
		var sql bytes.Buffer
		if err := parsed.Execute(&sql, nil); err != nil {
			panic(fmt.Sprintf("outbox: schema of %s, version %d: %v", unit, version, err))
		}
		rendered = append(rendered, strings.TrimSpace(sql.String()))
	}
}

// Migrate makes the tables, or brings those of an earlier version up to date: all in one transaction, under an advisory
// lock, so that any number of processes may do it when they start. Tables that are as they should be are only read, which
// takes no right to make any. Tables of a newer version of this library are left alone, and work. More Lanes than before
// add tables; fewer take none away (see Config).
//
// The database schema named in Config is made if it is missing. No other function makes tables, but for the daily
// partitions of an archive.
func (o *Outbox) Migrate(ctx context.Context) error {
	if o.pool == nil {
		return fmt.Errorf("outbox: migrate: %w", errNoPool)
	}
	if err := o.schema().Apply(ctx, o.pool); err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	return nil
}

// DDL returns the statements by which Migrate makes the tables from nothing, for a migration tool of the user's own. They
// are for one run; each step is headed by its name and version, so that those of a later version of the library can be
// told. It does no I/O and needs no pool.
func (o *Outbox) DDL() string { return o.schema().DDL() }

func (o *Outbox) schema() migrate.Schema { return schemaOf(o.tables, o.cfg.Lanes) }
