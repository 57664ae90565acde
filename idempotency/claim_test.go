package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of database/sql
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
)

// transaction is one of either driver.
type transaction interface {
	idempotency.Tx
	rollback()
	setting(name string) string // of the session, as the transaction sees it
	pid() int
}

// driver begins transactions of the caller's own.
type driver struct {
	name  string
	begin func(t *testing.T, d *db, level sql.IsolationLevel) transaction
}

var drivers = []driver{{"pgx", beginPgx}, {"database/sql", beginSQL}}

type pgxTx struct {
	pgx.Tx
	t *testing.T
}

func beginPgx(t *testing.T, d *db, level sql.IsolationLevel) transaction {
	options := pgx.TxOptions{}
	if level == sql.LevelRepeatableRead {
		options.IsoLevel = pgx.RepeatableRead
	}
	tx, err := d.pool.BeginTx(t.Context(), options)
	require.NoError(t, err)
	p := pgxTx{tx, t}
	t.Cleanup(p.rollback)
	return p
}

func (p pgxTx) rollback() { _ = p.Rollback(context.Background()) }

func (p pgxTx) setting(name string) (value string) {
	require.NoError(p.t, p.QueryRow(context.Background(), "SELECT current_setting($1)", name).Scan(&value))
	return value
}

func (p pgxTx) pid() int { return int(p.Conn().PgConn().PID()) }

type sqlTx struct {
	idempotency.Tx
	tx *sql.Tx
	t  *testing.T
}

func beginSQL(t *testing.T, d *db, level sql.IsolationLevel) transaction {
	base, err := sql.Open("pgx", d.url)
	require.NoError(t, err)
	tx, err := base.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	require.NoError(t, err)
	s := sqlTx{idempotency.SQL(tx), tx, t}
	t.Cleanup(func() {
		s.rollback()
		require.NoError(t, base.Close())
	})
	return s
}

func (s sqlTx) rollback() { _ = s.tx.Rollback() }

func (s sqlTx) setting(name string) (value string) {
	require.NoError(s.t, s.tx.QueryRow("SELECT current_setting($1)", name).Scan(&value))
	return value
}

// code is the SQLSTATE in err.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func (s sqlTx) pid() (pid int) {
	require.NoError(s.t, s.tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
	return pid
}

// One suite for both drivers: a claim in a transaction of the caller's own.
func TestClaimConformance(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			inbox := d.inbox("billing", idempotency.Config{LockTimeout: 150 * time.Millisecond})
			begin := func(t *testing.T) transaction { return driver.begin(t, d, sql.LevelDefault) }
			claim := func(t *testing.T, tx idempotency.Tx, key string) bool {
				t.Helper()
				fresh, err := inbox.Claim(t.Context(), tx, key)
				require.NoError(t, err)
				return fresh
			}
			work := func(t *testing.T, tx idempotency.Tx) {
				t.Helper()
				_, err := tx.Exec(t.Context(), "UPDATE accounts SET balance = balance + 1 WHERE id = 'a'")
				require.NoError(t, err)
			}

			t.Run("key and effect go together", func(t *testing.T) {
				first := begin(t)
				require.True(t, claim(t, first, "k"))
				work(t, first)
				first.rollback()
				second := begin(t)
				require.True(t, claim(t, second, "k"), "the first was rolled back")
				require.False(t, claim(t, second, "k"), "once in a transaction")
				work(t, second)
				require.NoError(t, second.Commit(t.Context()))
				require.False(t, claim(t, begin(t), "k"))
				require.Equal(t, 1, d.balance("a"))
			})

			t.Run("the second waits for the first", func(t *testing.T) {
				for _, commits := range []bool{true, false} {
					patient := d.inbox("patient", idempotency.Config{LockTimeout: patience})
					key := uuid.NewString()
					first, second := begin(t), begin(t)
					fresh, err := patient.Claim(t.Context(), first, key)
					require.NoError(t, err)
					require.True(t, fresh)
					type answer struct {
						fresh bool
						err   error
					}
					answered := make(chan answer, 1)
					go func() {
						fresh, err := patient.Claim(context.Background(), second, key)
						answered <- answer{fresh, err}
					}()
					testenv.Eventually(t, patience, func() bool {
						return d.number("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid' AND datname = current_database()") == 1
					}, "the second waits")
					if commits {
						require.NoError(t, first.Commit(t.Context()))
					} else {
						first.rollback()
					}
					require.Equal(t, answer{fresh: !commits}, <-answered)
				}
			})

			t.Run("busy", func(t *testing.T) {
				first, second := begin(t), begin(t)
				require.True(t, claim(t, first, "busy"))
				tookOnce(t, 300*time.Millisecond, "a LockTimeout of 150 ms", func() time.Duration {
					began := time.Now()
					_, err := inbox.Claim(t.Context(), second, "busy")
					measured := time.Since(began)
					require.ErrorIs(t, err, idempotency.ErrBusy)
					require.True(t, notNow(err))
					require.Equal(t, "55P03", code(err))
					require.GreaterOrEqual(t, measured, 150*time.Millisecond, "never early")
					second.rollback()
					second = begin(t)
					return measured
				})

				hasty := d.inbox("hasty", idempotency.Config{LockTimeout: -1})
				first = begin(t)
				_, err := hasty.Claim(t.Context(), first, "busy")
				require.NoError(t, err)
				tookOnce(t, 100*time.Millisecond, "a LockTimeout of -1", func() time.Duration {
					began := time.Now()
					_, err = hasty.Claim(t.Context(), second, "busy")
					measured := time.Since(began)
					require.ErrorIs(t, err, idempotency.ErrBusy)
					second.rollback()
					second = begin(t)
					return measured
				})
			})

			t.Run("lock_timeout is as it was", func(t *testing.T) {
				tx := begin(t)
				_, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '7s'")
				require.NoError(t, err)
				require.True(t, claim(t, tx, "settings"))
				require.Equal(t, "7s", tx.setting("lock_timeout"), "after a new key")
				require.False(t, claim(t, tx, "settings"))
				require.Equal(t, "7s", tx.setting("lock_timeout"), "after a known one")
			})

			t.Run("P65 an unusable key leaves the transaction whole", func(t *testing.T) {
				tx := begin(t)
				for name, key := range unusable {
					_, err := inbox.Claim(t.Context(), tx, key)
					require.ErrorIs(t, err, idempotency.ErrNoKey, name)
					require.True(t, permanent(err), name)
				}
				require.True(t, claim(t, tx, strings.Repeat("k", 255)))
				require.True(t, claim(t, tx, "naïve clé €"))
				require.NoError(t, tx.Commit(t.Context()))
			})

			t.Run("P65 keys are not folded", func(t *testing.T) {
				tx := begin(t)
				for _, key := range []string{"A", "a", "a ", " a", "a\t", "ä", "a\u0308", "0", "00", "null", "NULL", `'`, `\x00`, "\U0001F600"} {
					require.True(t, claim(t, tx, key), "%q", key)
				}
			})

			t.Run("P64 codes of the higher levels", func(t *testing.T) {
				first, second := begin(t), driver.begin(t, d, sql.LevelRepeatableRead)
				require.Equal(t, "repeatable read", second.setting("transaction_isolation"))
				require.True(t, claim(t, first, "collides"))
				require.NoError(t, first.Commit(t.Context()))
				_, err := inbox.Claim(t.Context(), second, "collides") // its snapshot is older
				require.Equal(t, "40001", code(err))
				require.True(t, notNow(err))
				third := driver.begin(t, d, sql.LevelRepeatableRead)
				require.False(t, claim(t, third, "collides"))
			})

			t.Run("uuid keys", func(t *testing.T) {
				ids := d.inbox("ids", idempotency.Config{Table: "ids", UUIDKeys: true})
				tx := begin(t)
				id := uuid.NewString()
				for i, want := range []bool{true, false} {
					fresh, err := ids.Claim(t.Context(), tx, id)
					require.NoError(t, err)
					require.Equal(t, want, fresh, i)
				}
				fresh, err := ids.Claim(t.Context(), tx, strings.ToUpper(id))
				require.NoError(t, err)
				require.False(t, fresh)
				for _, key := range []string{"k", "{" + id + "}", "urn:uuid:" + id, strings.ReplaceAll(id, "-", ""), id + " "} {
					_, err := ids.Claim(t.Context(), tx, key)
					require.ErrorIs(t, err, idempotency.ErrNoKey, key)
				}
			})

			t.Run("P64 a transaction that failed before, or is over, is the caller's mistake", func(t *testing.T) {
				failed, over := begin(t), begin(t)
				_, err := failed.Exec(t.Context(), "INSERT INTO accounts VALUES ('a')")
				require.Equal(t, "23505", code(err))
				_, err = inbox.Claim(t.Context(), failed, "late")
				require.Equal(t, "25P02", code(err))
				require.False(t, notNow(err), "%v", err)
				over.rollback()
				_, err = inbox.Claim(t.Context(), over, "late")
				require.Error(t, err)
				require.False(t, notNow(err), "%v", err)
			})

			t.Run("a session that was ended", func(t *testing.T) {
				tx := begin(t)
				testenv.TerminateBackends(t, d.url, tx.pid())
				_, err := inbox.Claim(t.Context(), tx, "lost")
				require.True(t, notNow(err), "%v", err)
			})
		})
	}
}

// unusable are the keys of P65.
var unusable = map[string]string{
	"empty": "", "too long": strings.Repeat("k", 256), "10 KB": strings.Repeat("k", 10<<10),
	"NUL": "a\x00b", "invalid UTF-8": "a\xffb", "cut off UTF-8": "€"[:2],
}
