package outbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Metrics of a relay. All have the attributes warren.outbox.table and warren.outbox.lane.
const (
	metricMessages = "warren.outbox.messages"         // by warren.outcome: sent, failed (an attempt), parked, open (sent again)
	metricFetch    = "warren.outbox.fetch.duration"   // of a statement that looks for rows
	metricPublish  = "warren.outbox.publish.duration" // of a batch, from its first message to its last confirmation
	metricLate     = "warren.outbox.late"             // rows that only the sweep has found: 0, unless ids were drawn anew or the relay has a fault
	metricLeader   = "warren.outbox.leader"           // 1 for the relay that leads the lane, else 0
	metricAge      = "warren.outbox.age"              // since when the oldest message that is being sent waits
	metricInFlight = "warren.outbox.in_flight"        // rows that were fetched and are not settled
	metricGaps     = "warren.outbox.gaps"             // ids that may still become visible
	metricParked   = "warren.outbox.parked"           // rows that were given up; counted once a minute by who leads

	keyTable   = attribute.Key("warren.outbox.table")
	keyLane    = attribute.Key("warren.outbox.lane")
	keyOutcome = attribute.Key("warren.outcome")
)

// buckets, in seconds, reach from a fetch of nothing to a batch that waits for a broker.
var buckets = metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)

// laneFigures is what a lane knows about itself, for whoever looks.
type laneFigures struct {
	leads       atomic.Bool
	gaps        atomic.Int64
	parked      atomic.Int64
	oldest      atomic.Int64 // time of enqueueing of the first row that is being sent, in µs since 1970; 0 when none is
	unconfirmed atomic.Int64 // messages of which nobody knows whether they arrived
}

type relayMetrics struct {
	meter    metric.Meter
	messages metric.Int64Counter
	late     metric.Int64Counter
	fetch    metric.Float64Histogram
	publish  metric.Float64Histogram

	leader, inFlight, gaps, parked metric.Int64ObservableGauge
	age                            metric.Float64ObservableGauge

	mu    sync.Mutex
	lanes map[*lane]struct{}
}

func newRelayMetrics(o *Outbox) (*relayMetrics, error) {
	m := &relayMetrics{meter: o.cfg.MeterProvider.Meter("github.com/warrenmq/warren"), lanes: map[*lane]struct{}{}}
	var faults [9]error
	m.messages, faults[0] = m.meter.Int64Counter(metricMessages, metric.WithUnit("{message}"),
		metric.WithDescription("Messages that were tried, by outcome."))
	m.late, faults[1] = m.meter.Int64Counter(metricLate, metric.WithUnit("{message}"),
		metric.WithDescription("Messages that only the sweep has found."))
	m.fetch, faults[2] = m.meter.Float64Histogram(metricFetch, metric.WithUnit("s"), buckets,
		metric.WithDescription("Time of a statement that looks for messages."))
	m.publish, faults[3] = m.meter.Float64Histogram(metricPublish, metric.WithUnit("s"), buckets,
		metric.WithDescription("Time of a batch until all of it has an outcome."))
	m.leader, faults[4] = m.meter.Int64ObservableGauge(metricLeader,
		metric.WithDescription("1 while this relay leads the lane."))
	m.inFlight, faults[5] = m.meter.Int64ObservableGauge(metricInFlight, metric.WithUnit("{message}"),
		metric.WithDescription("Messages that were fetched and are not settled."))
	m.gaps, faults[6] = m.meter.Int64ObservableGauge(metricGaps, metric.WithUnit("{id}"),
		metric.WithDescription("Ids of messages that may still be committed."))
	m.parked, faults[7] = m.meter.Int64ObservableGauge(metricParked, metric.WithUnit("{message}"),
		metric.WithDescription("Messages that were given up."))
	m.age, faults[8] = m.meter.Float64ObservableGauge(metricAge, metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest message that is being sent."))
	return m, errors.Join(faults[:]...)
}

// observe has the lanes looked at until stop is called.
func (m *relayMetrics) observe() (stop func(), err error) {
	r, err := m.meter.RegisterCallback(m.look, m.leader, m.inFlight, m.gaps, m.parked, m.age)
	if err != nil {
		return nil, err
	}
	return func() { _ = r.Unregister() }, nil
}

func (m *relayMetrics) look(_ context.Context, o metric.Observer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := range m.lanes {
		if !l.figures.leads.Load() {
			o.ObserveInt64(m.leader, 0, l.attributes)
			continue
		}
		o.ObserveInt64(m.leader, 1, l.attributes)
		o.ObserveInt64(m.inFlight, int64(l.inFlight.len()), l.attributes)
		o.ObserveInt64(m.gaps, l.figures.gaps.Load(), l.attributes)
		o.ObserveInt64(m.parked, l.figures.parked.Load(), l.attributes)
		age := 0.0
		if oldest := l.figures.oldest.Load(); oldest != 0 {
			age = max(0, time.Since(time.UnixMicro(oldest)).Seconds())
		}
		o.ObserveFloat64(m.age, age, l.attributes)
	}
	return nil
}

// add has a lane looked at until remove is called.
func (m *relayMetrics) add(l *lane) (remove func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lanes[l] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.lanes, l)
	}
}

func (m *relayMetrics) fetched(l *lane, took time.Duration) {
	m.fetch.Record(context.Background(), took.Seconds(), l.attributes)
}

func (m *relayMetrics) published(l *lane, took time.Duration) {
	m.publish.Record(context.Background(), took.Seconds(), l.attributes)
}

func (m *relayMetrics) missed(l *lane, n int) {
	m.late.Add(context.Background(), int64(n), l.attributes)
}

func (m *relayMetrics) count(l *lane, outcome string, n int) {
	if n > 0 {
		m.messages.Add(context.Background(), int64(n), l.attributes, metric.WithAttributes(keyOutcome.String(outcome)))
	}
}
