package consistenthash_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

// Three instances that start one after the other share nine partitions: the first one, which was active on all of them, gives back what
// is above its share, and no key's order suffers.
func TestInstancesShareThePartitions(t *testing.T) {
	t.Parallel()
	const parts, interval = 9, 200 * time.Millisecond
	s, l, all := newSetup(t, consistenthash.Partitions{Count: parts}), newLedger(), keys(45)
	load := s.load(all, interval)

	var stops []func() error
	var warnings warnings
	for i := range 3 {
		conn := s.dialTo(s.broker.URL(), fmt.Sprintf("instance%d", i), reconnect.Config{Logger: testenv.LoggerTo(&warnings)})
		stops = append(stops, s.start(conn, func(ctx context.Context, d amqp.Delivery) error {
			l.begin(d)
			return work(ctx, 2*time.Millisecond)
		}, consistenthash.ConsumerConfig{}))
		require.NoError(t, work(t.Context(), time.Second))
	}
	began := time.Now()
	testenv.Eventually(t, 30*time.Second, func() bool { return most(s.activeBy()) <= 4 }, "no instance active on more than 4")
	shared := time.Since(began)
	testenv.Eventually(t, 30*time.Second, func() bool { by := s.activeBy(); return most(by) == 3 && total(by) == parts }, "three each")
	t.Logf("at most 4 after %v, 3/3/3 after %v", shared, time.Since(began))

	before := s.active()
	require.NoError(t, work(t.Context(), 6*time.Second))
	require.Equal(t, before, s.active(), "no moves once all have their share")

	require.NoError(t, stops[0]())
	testenv.Eventually(t, patience, func() bool { by := s.activeBy(); return len(by) == 2 && most(by) == 5 && total(by) == parts }, "two instances, 5 and 4")

	n := load.stop()
	s.settled()
	l.inOrder(t, all, n)
	require.Zero(t, s.depth(s.partitions.DeadLetterQueue()))
	require.Empty(t, warnings.all(), "giving a partition back is nothing to warn of")
}

// warnings keeps what is logged as one.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler           { return w }
func (w *warnings) WithGroup(string) slog.Handler                { return w }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool { r.Message += " " + a.String(); return true })
	w.text = append(w.text, r.Message)
	return nil
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text
}

// A paused instance takes no share, and has its share again after Resume.
func TestPausedInstanceIsNotCounted(t *testing.T) {
	t.Parallel()
	s, l, all := newSetup(t, consistenthash.Partitions{Count: 4}), newLedger(), keys(20)
	load := s.load(all, 100*time.Millisecond)
	handler := func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }
	s.start(s.dial("one"), handler, consistenthash.ConsumerConfig{})
	two := s.consumer(s.dial("two"), handler, consistenthash.ConsumerConfig{})
	run(t, two)
	shared := func() bool { by := s.activeBy(); return len(by) == 2 && most(by) == 2 && total(by) == 4 }
	testenv.Eventually(t, patience, shared, "two each")
	two.Pause()
	two.Pause()
	testenv.Eventually(t, patience, func() bool { by := s.activeBy(); return len(by) == 1 && most(by) == 4 }, "all for one")
	// It leaves its partitions and the count at once, on different channels.
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.partitions.Name+".partitions").Consumers == 1 }, "one instance is counted")
	two.Resume()
	testenv.Eventually(t, patience, shared, "two each, again")
	n := load.stop()
	s.settled()
	l.inOrder(t, all, n)
}

// active returns the connection, by its number, of the active consumer of each partition.
func (s *setup) active() (owners []string) {
	s.t.Helper()
	owners = make([]string, s.partitions.Count)
	var found map[string]string
	s.broker.Eval(s.t, &found, fmt.Sprintf(`
Name = fun(Channel) ->
    case rabbit_channel:info(Channel, [connection]) of
        [{connection, Connection}] ->
            [{client_properties, Table}] = rabbit_networking:connection_info(Connection, [client_properties]),
            {_, _, Value} = lists:keyfind(<<"connection_name">>, 1, Table), Value
    end end,
maps:from_list([{element(4, amqqueue:get_name(Queue)), try Name(Pid) catch _:_ -> <<>> end}
 || Queue <- rabbit_amqqueue:list(), binary:longest_common_prefix([<<"%s.">>, element(4, amqqueue:get_name(Queue))]) =:= %d,
    amqqueue:get_type(Queue) =:= rabbit_quorum_queue,
    {Pid, _, _, _, true, _, _, _} <- rabbit_amqqueue:consumers(Queue)]).`, s.partitions.Name, len(s.partitions.Name)+1))
	for i := range owners {
		owners[i] = found[s.partitions.Queue(i)]
	}
	return owners
}

// activeBy returns how many partitions each connection is active on.
func (s *setup) activeBy() map[string]int {
	s.t.Helper()
	by := map[string]int{}
	for _, owner := range s.active() {
		if owner != "" {
			by[strings.TrimPrefix(owner, s.name)]++
		}
	}
	return by
}

func most(by map[string]int) (most int) {
	for _, n := range by {
		most = max(most, n)
	}
	return most
}

// total is how many partitions have an active consumer; one that is being handed over may have none.
func total(by map[string]int) (n int) {
	for _, of := range by {
		n += of
	}
	return n
}

// load publishes message after message of every key, an interval apart, until it is stopped.
type load struct {
	stop func() int // returns how many of each key were sent
}

func (s *setup) load(keys []string, interval time.Duration) load {
	ctx, cancel := context.WithCancel(s.t.Context())
	var sending sync.WaitGroup
	n := 0
	sending.Go(func() {
		for ; ctx.Err() == nil; n++ {
			s.publish(keys, n, n+1)
			_ = work(ctx, interval)
		}
	})
	stop := sync.OnceValue(func() int { cancel(); sending.Wait(); return n })
	s.t.Cleanup(func() { stop() })
	return load{stop}
}
