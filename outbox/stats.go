package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Stats is how much there is to send, at one moment.
type Stats struct {
	// OldestAge is how long the first message that waits has done so, by the database's clock; 0 when none does. Watch this
	// one: it grows whenever sending stands still, for whatever reason.
	OldestAge time.Duration

	// Waiting is the number of messages that are not confirmed yet, those of Retrying included.
	Waiting int64

	// Scheduled is the number of those whose NotBefore has not come.
	Scheduled int64

	// Retrying is the number of those whose sending failed and that are to be tried again.
	Retrying int64

	// Parked is the number of those that were given up.
	Parked int64
}

// Stats counts the messages in the outbox. That takes the longer the more there are: about a tenth of a second for a
// million.
func (o *Outbox) Stats(ctx context.Context) (Stats, error) {
	s, err := o.stats(ctx)
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: stats: %w", err)
	}
	return s, nil
}

func (o *Outbox) stats(ctx context.Context) (s Stats, err error) {
	if o.pool == nil {
		return s, errNoPool
	}
	lanes, err := o.tables.lanes(ctx, o.pool)
	if err != nil {
		return s, err
	}
	var age float64
	err = o.pool.QueryRow(ctx, o.statsSQL(lanes)).Scan(&s.Waiting, &age, &s.Scheduled, &s.Retrying, &s.Parked)
	s.OldestAge = time.Duration(age * float64(time.Second))
	return s, err
}

// statsSQL is one statement, and so one snapshot. The oldest message is the first by id, or as good as; its age is bounded
// by what a time.Duration holds, since other programs may write any time.
func (o *Outbox) statsSQL(lanes []int) string {
	counts, firsts := []string{"0"}, []string{"NULL::timestamptz"}
	for _, lane := range lanes {
		counts = append(counts, "(SELECT count(*) FROM "+o.tables.lane(lane)+")")
		firsts = append(firsts, "(SELECT CASE WHEN isfinite(created_at) THEN created_at END FROM "+o.tables.lane(lane)+" ORDER BY id LIMIT 1)")
	}
	return fmt.Sprintf("SELECT %s, least(9e9, greatest(0, coalesce(extract(epoch FROM clock_timestamp() - least(%s)), 0)))::float8,"+
		" (SELECT count(*) FROM %s), (SELECT count(*) FROM %s), (SELECT count(*) FROM %s)",
		strings.Join(counts, " + "), strings.Join(firsts, ", "), o.tables.scheduled(), o.tables.retry(), o.tables.parked())
}
