package coalesce

import (
	"crypto/tls"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// never is a point in time that does not come.
const never = math.MaxInt64

// deadlines decides up to when the socket may read and write.
//
// With a heartbeat h, each Read has at least 2 h and at most 2.25 h from its start: the socket's deadline is moved only
// when less than 2 h are left of it, since moving it costs more than looking at the clock. RabbitMQ looks every h/2
// whether it has sent something since the last look, so a living broker is silent for h at most.
//
// A write that makes no progress is given up after 2 h. Progress can only be seen when a write returns, so the socket's
// deadline is shorter, at most h/2, and the write is continued: 2.5 h at the most from the moment the peer stopped.
// With TLS a write that timed out cannot be continued; there each record has from 2 h to 2.25 h.
type deadlines struct {
	nc    net.Conn
	whole bool      // a write that timed out cannot be continued (TLS)
	start time.Time // origin of the clock of readRefresh

	readRefresh atomic.Int64 // nanoseconds since start from which a Read has to move its deadline

	mu        sync.Mutex // held while a deadline of nc is set, so that the last word is the right one
	heartbeat time.Duration
	blocked   bool
	both      time.Time // SetDeadline
	read      time.Time // SetReadDeadline; without effect once heartbeat is known
	write     time.Time // SetWriteDeadline
	closeBy   time.Time // Close; bounds writing
	lastRead  time.Time // a write has failed; bounds reading
	tuned     bool      // SetHeartbeat was called

	stalled      time.Time // since when the peer has taken nothing of the write in progress
	writeRefresh time.Time // from when on a write has to move its deadline; zero: never
}

func (d *deadlines) init(nc net.Conn) {
	d.nc = nc
	_, d.whole = nc.(interface{ ConnectionState() tls.ConnectionState })
	d.start = time.Now()
	d.readRefresh.Store(never)
}

func (d *deadlines) setHeartbeat(h time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.heartbeat, d.tuned, d.stalled = max(h, 0), true, now
	_ = d.armRead(now)
	_ = d.armWrite(now)
}

func (d *deadlines) setBlocked(blocked bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.blocked == blocked {
		return
	}
	now := time.Now()
	d.blocked, d.stalled = blocked, now
	_ = d.armWrite(now)
}

func (d *deadlines) setBoth(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.both, d.read, d.write = t, time.Time{}, time.Time{}
	if err := d.armRead(now); err != nil {
		return err
	}
	return d.armWrite(now)
}

func (d *deadlines) setRead(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tuned {
		return nil
	}
	d.read = t
	return d.armRead(time.Now())
}

func (d *deadlines) setWrite(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.write = t
	return d.armWrite(time.Now())
}

func (d *deadlines) boundClose(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closeBy.IsZero() {
		d.closeBy = t
		_ = d.armWrite(time.Now())
	}
}

// boundRead bounds what is left to be read after a write has failed.
func (d *deadlines) boundRead(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastRead = earliest(d.lastRead, t)
	_ = d.armRead(time.Now())
}

// beforeRead moves the deadline for reading when it has come too near.
func (d *deadlines) beforeRead() {
	refresh := d.readRefresh.Load()
	if refresh == never || int64(time.Since(d.start)) < refresh {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.armRead(time.Now())
}

// silent tells whether a Read that timed out now did so because the peer is silent, not because of a given deadline.
func (d *deadlines) silent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.heartbeat > 0 && !passed(d.both, time.Now())
}

// armRead gives nc its deadline for reading. The caller holds mu.
func (d *deadlines) armRead(now time.Time) error {
	limit := earliest(d.both, d.lastRead)
	refresh := int64(never)
	switch {
	case !d.tuned:
		limit = earliest(limit, d.read)
	case d.heartbeat > 0:
		limit = earliest(limit, now.Add(2*d.heartbeat+d.heartbeat/4))
		refresh = int64(now.Sub(d.start) + d.heartbeat/4)
	}
	d.readRefresh.Store(refresh)
	return d.nc.SetReadDeadline(limit)
}

// armWrite gives nc its deadline for writing. The caller holds mu.
func (d *deadlines) armWrite(now time.Time) error {
	limit := d.given()
	d.writeRefresh = time.Time{}
	if d.heartbeat > 0 && !d.blocked {
		if d.whole {
			limit = earliest(limit, now.Add(2*d.heartbeat+d.heartbeat/4))
		} else {
			limit = earliest(limit, now.Add(d.heartbeat/2), d.stalled.Add(2*d.heartbeat))
		}
		// Between two writes stalled is old and limit may have passed: then the next write moves it at once.
		d.writeRefresh = earliest(limit, now.Add(d.heartbeat/4))
	}
	return d.nc.SetWriteDeadline(limit)
}

// given returns the earliest deadline for writing that somebody asked for. The caller holds mu.
func (d *deadlines) given() time.Time { return earliest(d.both, d.write, d.closeBy) }

// beforeWrite prepares for a write. progress is false when it continues one that timed out without moving a byte.
func (d *deadlines) beforeWrite(progress bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.heartbeat <= 0 { // nc has the given deadlines already
		return
	}
	now := time.Now()
	if progress {
		d.stalled = now
	}
	if !d.writeRefresh.IsZero() && !now.Before(d.writeRefresh) {
		_ = d.armWrite(now)
	}
}

// mayGoOn tells whether a write that timed out, after some progress or none, is to be continued.
func (d *deadlines) mayGoOn(progress bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.whole || passed(d.given(), now) {
		return false
	}
	return progress || d.blocked || now.Sub(d.stalled) < 2*d.heartbeat
}

// earliest returns the first of the given points in time, of which the zero ones mean never.
func earliest(ts ...time.Time) (first time.Time) {
	for _, t := range ts {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// passed tells whether t, unless it is zero, has come.
func passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }
