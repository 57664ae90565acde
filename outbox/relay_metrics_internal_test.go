package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/embedded"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// observed notes what a look at the lanes observes.
type observed struct {
	embedded.Observer
	ints   []int64
	floats []float64
}

func (o *observed) ObserveInt64(_ metric.Int64Observable, v int64, _ ...metric.ObserveOption) {
	o.ints = append(o.ints, v)
}

func (o *observed) ObserveFloat64(_ metric.Float64Observable, v float64, _ ...metric.ObserveOption) {
	o.floats = append(o.floats, v)
}

// While messages cannot be sent, the age of the oldest one grows, and they are in flight. A relay that stands by observes
// nothing but that.
func TestMetricsOfALane(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	look := func(r *running) *observed {
		o := new(observed)
		require.NoError(t, r.metrics.look(t.Context(), o))
		return o
	}
	hold := make(chan struct{})
	pub.set(func(context.Context, []reconnect.Message) error { <-hold; return nil })
	first := relay(t, box, pub, RelayConfig{})
	testenv.Eventually(t, patience, func() bool { return leading(first) }, "it leads")
	store(t, box, "a", "b", "c")
	testenv.Eventually(t, patience, func() bool { o := look(first); return o.floats[0] > 0.2 }, "the age grows")
	require.Equal(t, int64(3), look(first).ints[1], "in flight")
	second := relay(t, box, pub, RelayConfig{})
	testenv.Eventually(t, patience, func() bool { return len(look(second).ints) == 1 }, "it stands by")
	require.Equal(t, []int64{0}, look(second).ints)
	close(hold)
	drained(t, box)
	testenv.Eventually(t, patience, func() bool { o := look(first); return o.floats[0] == 0 && o.ints[1] == 0 }, "nothing waits any more")
	require.NoError(t, first.stop(t))
	require.Empty(t, look(first).ints, "nothing is observed of a relay that does not run")
	testenv.Eventually(t, patience+3*time.Second, func() bool { return leading(second) }, "the other one leads")
}
