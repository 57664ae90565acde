package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/internal/backoff"
)

// leaseRow is the lead by a row that says who leads and until when, by the clock of the database. It asks nothing of
// sessions, so it works behind a pooler that gives each transaction another one.
type leaseRow struct {
	lane    *lane
	fetches *pgx.Conn
	renews  *pgx.Conn
	*trust
}

var errLeaseLost = errors.New("the lease was not renewed in time")

func (r *leaseRow) conn() *pgx.Conn { return r.fetches }

func (r *leaseRow) listens() bool { return false }

// ttl is how long a lease is good for.
func (r *leaseRow) ttl() time.Duration { return r.lane.relay.cfg.Lease }

// margin is by how much earlier than the database its owner takes a lease for ended.
func (r *leaseRow) margin() time.Duration { return r.ttl() / 5 }

func (r *leaseRow) take(ctx context.Context) (won bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, quickTimeout)
	defer cancel()
	if r.renews == nil {
		if r.renews, err = r.lane.relay.connect(ctx); err != nil {
			return false, err
		}
		r.trust = newTrust()
	}
	var free bool // a look costs no write, unlike an attempt
	if err := r.renews.QueryRow(ctx, r.lane.sql.leaseFree).Scan(&free); err != nil || !free {
		return false, err
	}
	if won, err = r.claim(ctx); err != nil || !won {
		return false, err
	}
	r.fetches, err = r.lane.relay.connect(ctx)
	return err == nil, err
}

// claim takes or renews the lease.
func (r *leaseRow) claim(ctx context.Context) (bool, error) {
	start := time.Now()
	tag, err := r.renews.Exec(ctx, r.lane.sql.leaseClaim, r.lane.me, r.ttl().Microseconds())
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	r.extend(start, r.ttl()-r.margin())
	return true, nil
}

// keep renews the lease three times in its life. A database that does not answer is asked again until it has run out.
func (r *leaseRow) keep(ctx context.Context) error {
	for backoff.Sleep(ctx, r.ttl()/3) == nil {
		if err := r.renew(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (r *leaseRow) renew(ctx context.Context) (err error) {
	for attempt := 1; r.holds(); attempt++ {
		var kept bool
		if kept, err = r.tryRenew(ctx); kept {
			return nil
		}
		if err == nil {
			return errLeaseLost // it is somebody else's
		}
		if backoff.Sleep(ctx, backoff.Policy{Min: r.ttl() / 50, Max: r.ttl() / 10}.Delay(attempt)) != nil {
			return nil
		}
	}
	return errors.Join(errLeaseLost, err)
}

func (r *leaseRow) tryRenew(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.ttl()/5)
	defer cancel()
	if r.renews.IsClosed() {
		conn, err := r.lane.relay.connect(ctx)
		if err != nil {
			return false, err
		}
		r.renews = conn
	}
	return r.claim(ctx)
}

// probe has nothing to do: the lease is renewed on another connection.
func (r *leaseRow) probe(context.Context) error {
	if !r.holds() {
		return errLeaseLost
	}
	return nil
}

func (r *leaseRow) heard(time.Time) {}

func (r *leaseRow) trusted() bool { return r.holds() }

func (r *leaseRow) resign() {
	if r.renews != nil && !r.renews.IsClosed() && r.trust.until.Load() > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), hangUpTimeout)
		_, _ = r.renews.Exec(ctx, r.lane.sql.leaseRelease, r.lane.me)
		cancel()
	}
	hangUp(r.fetches)
	hangUp(r.renews)
}
