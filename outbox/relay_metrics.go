package outbox

import (
	"sync"
	"sync/atomic"
	"time"
)

type laneFigures struct {
	leads       atomic.Bool
	gaps        atomic.Int64
	unconfirmed atomic.Int64 // messages of which nobody knows whether they were sent
}

type relayMetrics struct {
	mu    sync.Mutex
	lanes map[*lane]struct{}
}

func newRelayMetrics(o *Outbox) (*relayMetrics, error) { return &relayMetrics{lanes: map[*lane]struct{}{}}, nil }

func (m *relayMetrics) observe() (stop func()) { return func() {} }
func (m *relayMetrics) add(l *lane) (remove func()) { return func() {} }
func (m *relayMetrics) fetched(l *lane, took time.Duration, rows int) {}
func (m *relayMetrics) published(l *lane, took time.Duration, verdicts []verdict) {}
func (m *relayMetrics) missed(l *lane, rows int) {}
func (m *relayMetrics) failed(l *lane, failed, parked int) {}
