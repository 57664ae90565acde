package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// archiveInterval is how often the days of an archive are looked after.
const archiveInterval = time.Hour

// archiveDays makes the partitions of the next days, if there is an archive. Nothing depends on them, since a day without
// one is kept in the default partition: it fails only with its session.
func (t *term) archiveDays() error {
	if !t.relay.outbox.cfg.Archive || t.n != 0 || !t.archived.IsZero() && time.Since(t.archived) < archiveInterval {
		return nil
	}
	t.archived = time.Now()
	err := t.ask(func(ctx context.Context, conn *pgx.Conn) error {
		return t.relay.outbox.tables.makePartitions(ctx, conn, time.Now())
	})
	if t.office.conn().IsClosed() {
		return err
	}
	if err != nil {
		t.log.Warn("outbox: a day of the archive goes to its default partition", "error", err)
	}
	return nil
}
