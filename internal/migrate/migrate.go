package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// lock is the key of the advisory lock under which every schema of the library is migrated, so that two that make the same
// database schema do not meet: "warren" in ASCII.
const lock int64 = 0x77617272656e

// Schema is a set of tables.
type Schema struct {
	// Name is the database schema, made when it is missing; "" leaves the choice to the session's search_path.
	Name string
	// Versions is the table, in that schema, in which applied steps are noted.
	Versions string
	// Units in the order in which they are made.
	Units []Unit
}

// Unit is what is migrated as a whole.
type Unit struct {
	Name  string
	Steps []string // SQL, each of any number of statements; only ever added to
}

// Beginner starts transactions: a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Apply brings the schema up to date in one transaction: all of it, or nothing when it fails. Any number of processes may
// do so at once; one does the work and the others wait for it. A schema that is up to date, or that a newer version of
// the library has brought further, is left as it is and takes no more rights than to read Versions.
func (s Schema) Apply(ctx context.Context, db Beginner) error {
	if current, err := s.current(ctx, db); err != nil || current {
		return err
	}
	// Statements must see what was committed while this session waited for the lock.
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lock); err != nil {
			return err
		}
		return s.applyLocked(ctx, tx)
	})
}

// current tells whether there is nothing to do.
func (s Schema) current(ctx context.Context, db Beginner) (current bool, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		applied, err := s.applied(ctx, tx)
		current = err == nil && len(s.missing(applied)) == 0
		return err
	})
	return current, err
}

func (s Schema) applyLocked(ctx context.Context, tx pgx.Tx) error {
	if err := s.makeSchema(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, s.versionTable()); err != nil {
		return err
	}
	applied, err := s.applied(ctx, tx)
	if err != nil {
		return err
	}
	for _, m := range s.missing(applied) {
		if _, err := tx.Conn().PgConn().Exec(ctx, m.sql).ReadAll(); err != nil { // several statements
			return fmt.Errorf("%s, version %d: %w", m.unit, m.version, err)
		}
		if _, err := tx.Exec(ctx, s.note(m)); err != nil {
			return err
		}
	}
	return nil
}

// makeSchema makes the database schema if it is missing. CREATE SCHEMA IF NOT EXISTS asks for the right to create one even
// where it does not.
func (s Schema) makeSchema(ctx context.Context, tx pgx.Tx) error {
	if s.Name == "" {
		return nil
	}
	var there bool
	err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", s.Name).Scan(&there)
	if err != nil || there {
		return err
	}
	_, err = tx.Exec(ctx, "CREATE SCHEMA "+Quote(s.Name))
	return err
}

// applied returns the version that each unit has.
func (s Schema) applied(ctx context.Context, tx pgx.Tx) (map[string]int, error) {
	var there bool
	err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", Qualify(s.Name, s.Versions)).Scan(&there)
	if err != nil || !there {
		return nil, err
	}
	rows, err := tx.Query(ctx, "SELECT unit, max(version) FROM "+Qualify(s.Name, s.Versions)+" GROUP BY unit")
	if err != nil {
		return nil, err
	}
	applied := map[string]int{}
	var unit string
	var version int
	_, err = pgx.ForEachRow(rows, []any{&unit, &version}, func() error {
		applied[unit] = version
		return nil
	})
	return applied, err
}

// step is one to be applied.
type step struct {
	unit    string
	version int // that it leads to
	sql     string
}

func (s Schema) missing(applied map[string]int) []step {
	var missing []step
	for _, u := range s.Units {
		for i, sql := range u.Steps {
			if i >= applied[u.Name] {
				missing = append(missing, step{unit: u.Name, version: i + 1, sql: sql})
			}
		}
	}
	return missing
}

func (s Schema) versionTable() string {
	return "CREATE TABLE IF NOT EXISTS " + Qualify(s.Name, s.Versions) + ` (
    unit       text        NOT NULL,
    version    integer     NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (unit, version)
)`
}

// note returns the statement that says a step has been applied. The names of units are the library's own.
func (s Schema) note(m step) string {
	return fmt.Sprintf("INSERT INTO %s (unit, version) VALUES ('%s', %d)", Qualify(s.Name, s.Versions), m.unit, m.version)
}

// DDL returns every statement that makes the schema from nothing, with comments, for a tool of the user's own. What Apply
// is given later finds it up to date. It is not meant to run twice; each step stands under its unit and version.
func (s Schema) DDL() string {
	var b strings.Builder
	if s.Name != "" {
		fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %s;\n\n", Quote(s.Name))
	}
	fmt.Fprintf(&b, "%s;\n", s.versionTable())
	for _, m := range s.missing(nil) {
		fmt.Fprintf(&b, "\n-- %s, version %d\n\n%s\n%s;\n", m.unit, m.version, strings.TrimSpace(m.sql), s.note(m))
	}
	return b.String()
}
