package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warrenmq/warren/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFaults(t *testing.T) {
	server := func(code, severity string) error {
		return fmt.Errorf("book: %w", &pgconn.PgError{Code: code, SeverityUnlocalized: severity, Message: "on a dit que"})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, refused := pgx.Connect(ctx, "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	require.Error(t, refused)
	for _, tt := range []struct {
		name           string
		err            error
		code           string
		collided, away bool
	}{
		{"nil", nil, "", false, false},
		{"serialization failure", server("40001", "ERROR"), "40001", true, false},
		{"deadlock", server("40P01", "ERROR"), "40P01", true, false},
		{"lock timeout", server("55P03", "ERROR"), "55P03", true, false},
		{"shutdown", server("57P01", "FATAL"), "57P01", false, true},
		{"starting up", server("57P03", "FATAL"), "57P03", false, true},
		{"too many connections", server("53300", "FATAL"), "53300", false, true},
		{"disk full", server("53100", "ERROR"), "53100", false, true},
		{"I/O error", server("58030", "ERROR"), "58030", false, true},
		{"connection failure, by a pooler", server("08006", "ERROR"), "08006", false, true},
		{"read-only standby", server("25006", "ERROR"), "25006", false, true},
		{"idle in transaction", server("25P03", "FATAL"), "25P03", false, true},
		{"any that ends the session", server("XX000", "FATAL"), "XX000", false, true},
		{"wrong password", server("28P01", "FATAL"), "28P01", false, true},
		{"duplicate", server("23505", "ERROR"), "23505", false, false},
		{"no such table", server("42P01", "ERROR"), "42P01", false, false},
		{"transaction aborted", server("25P02", "ERROR"), "25P02", false, false},
		{"cancelled, or statement timeout", server("57014", "ERROR"), "57014", false, false},
		{"raised by a trigger", server("P0001", "ERROR"), "P0001", false, false},
		{"nobody there", fmt.Errorf("book: %w", refused), "", false, true},
		{"connection closed", fmt.Errorf("book: %w", pgconn.ErrConnClosed), "", false, true},
		{"programming", pgx.ErrTxClosed, "", false, false},
		{"no rows", pgx.ErrNoRows, "", false, false},
		{"of something else", io.ErrUnexpectedEOF, "", false, false},
		{"context", context.DeadlineExceeded, "", false, false},
		{"texts say nothing", errors.New("deadlock detected (SQLSTATE 40P01)"), "", false, false},
	} {
		require.Equal(t, tt.code, pg.Code(tt.err), tt.name)
		require.Equal(t, tt.collided, pg.Collided(tt.err), tt.name)
		require.Equal(t, tt.away, pg.Away(tt.err), tt.name)
	}
}
