package consistenthash_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

// Resize moves what waits to where its key belongs from now on, in order; then the new number is the only one.
func TestResize(t *testing.T) {
	for _, tt := range []struct {
		from, to int
		plugin   bool
	}{{4, 7, false}, {7, 3, false}, {3, 6, true}, {5, 2, true}} {
		t.Run(fmt.Sprintf("%d to %d, plugin %v", tt.from, tt.to, tt.plugin), func(t *testing.T) {
			t.Parallel()
			s, l, all := newSetup(t, consistenthash.Partitions{Count: tt.from, Plugin: tt.plugin}), newLedger(), keys(30)
			s.publish(all, 0, 20)
			old := s.partitions
			conn := s.dial("resize")
			moved, err := consistenthash.Resize(t.Context(), conn, old, tt.to)
			require.NoError(t, err)
			require.Equal(t, 600, moved)
			moved, err = consistenthash.Resize(t.Context(), conn, old, tt.to)
			require.NoError(t, err, "again")
			require.Zero(t, moved)

			s.partitions.Count = tt.to
			for i := range max(tt.from, tt.to) {
				require.Equal(t, i < tt.to, s.broker.Queue(t, s.partitions.Queue(i)).Exists, "partition %d", i)
			}
			require.False(t, s.broker.Queue(t, s.partitions.Name+".resizing").Exists)
			pub, err := consistenthash.NewPublisher(s.dial("old"), old, reconnect.PublisherConfig{})
			require.NoError(t, err)
			require.ErrorIs(t, pub.Publish(t.Context(), "k", amqp.Publishing{}), consistenthash.ErrCountChanged)

			s.conn = s.dial("new")
			s.publish(all, 20, 25) // behind the moved ones of its key, if they are in the same partition
			s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }, consistenthash.ConsumerConfig{})
			s.settled()
			l.inOrder(t, all, 25)
			require.Zero(t, l.again)
		})
	}
}

// A Resize that is interrupted, anywhere and again and again, is finished by calling it again, in order all the same. Until then
// nobody may begin with either number.
func TestResizeInterrupted(t *testing.T) {
	t.Parallel()
	s, l, all := newSetup(t, consistenthash.Partitions{Count: 3}), newLedger(), keys(30)
	s.publish(all, 0, 40)
	old := s.partitions
	conn := s.dial("resize")
	interrupted := 0
	for limit := 2 * time.Millisecond; ; limit += limit / 4 {
		ctx, cancel := context.WithTimeout(t.Context(), limit+rand.N(limit))
		_, err := consistenthash.Resize(ctx, conn, old, 5)
		cancel()
		if err == nil {
			break
		}
		interrupted++
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, limit, patience)
	}
	require.Greater(t, interrupted, 5)
	s.partitions.Count, s.conn = 5, s.dial("new")
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }, consistenthash.ConsumerConfig{})
	s.settled()
	l.inOrder(t, all, 40)
	t.Logf("interrupted %d times, %d messages came twice", interrupted, l.again)
}

// Who describes the partitions otherwise than they are is told so before anything is touched: they go on as they were.
func TestResizeOfOtherPartitions(t *testing.T) {
	t.Parallel()
	s, l := newSetup(t, consistenthash.Partitions{Count: 2, DeliveryLimit: 7}), newLedger()
	s.publish(keys(3), 0, 4)
	conn := s.dial("resize")
	for argument, p := range map[string]consistenthash.Partitions{
		"x-delivery-limit": {Name: s.partitions.Name, Count: 2},
		"type":             {Name: s.partitions.Name, Count: 2, DeliveryLimit: 7, Plugin: true},
	} {
		_, err := consistenthash.Resize(t.Context(), conn, p, 3)
		var fault *reconnect.TopologyError
		require.ErrorAs(t, err, &fault)
		require.Equal(t, argument, fault.Argument)
	}
	s.start(s.dial("consumer"), func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }, consistenthash.ConsumerConfig{})
	s.settled()
	l.inOrder(t, keys(3), 4)
	require.False(t, s.broker.Queue(t, s.partitions.Name+".resizing").Exists)
}

// Calls that come while another is under way, from elsewhere or on the same Conn, wait for it, and nothing is moved twice or lost.
func TestResizeOneAtATime(t *testing.T) {
	t.Parallel()
	s, l, all := newSetup(t, consistenthash.Partitions{Count: 3}), newLedger(), keys(15)
	s.publish(all, 0, 40)
	old, here, there := s.partitions, s.dial("here"), s.dial("there")
	var total atomic.Int64
	var calls sync.WaitGroup
	for _, conn := range []*reconnect.Conn{here, there, here, there} {
		calls.Go(func() {
			moved, err := consistenthash.Resize(t.Context(), conn, old, 5)
			assert.NoError(t, err)
			total.Add(int64(moved))
		})
	}
	calls.Wait()
	require.EqualValues(t, 600, total.Load())
	require.False(t, s.broker.Queue(t, old.Name+".resizing.lock").Exists)
	s.partitions.Count, s.conn = 5, s.dial("new")
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }, consistenthash.ConsumerConfig{})
	s.settled()
	l.inOrder(t, all, 40)
	require.Zero(t, l.again)
}

// A Resize whose connection is cut goes on by itself, in order all the same.
func TestResizeThroughCuts(t *testing.T) {
	t.Parallel()
	s, l, all := newSetup(t, consistenthash.Partitions{Count: 3}), newLedger(), keys(15)
	s.publish(all, 0, 40)
	conn, done := s.dial("cut"), make(chan error, 1)
	go func() {
		_, err := consistenthash.Resize(t.Context(), conn, s.partitions, 5)
		done <- err
	}()
	var err error
	cuts := 0
	for ended := false; !ended; {
		select {
		case err = <-done:
			ended = true
		case <-time.After(100 * time.Millisecond):
			if cuts < 8 {
				cuts += s.broker.CutConnections(t, s.name+"-cut")
			}
		}
	}
	require.NoError(t, err)
	s.partitions.Count, s.conn = 5, s.dial("new")
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }, consistenthash.ConsumerConfig{})
	s.settled()
	l.inOrder(t, all, 40)
	t.Logf("%d connections cut, %d messages came twice", cuts, l.again)
}

// Whoever has waited in vain for a call that does not end, here one whose process stands still, is told why.
func TestResizeSaysThatItWaited(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 1})
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare(s.partitions.Name+".resizing.lock", false, false, true, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = consistenthash.Resize(ctx, s.conn, s.partitions, 2)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "another call is under way")
	require.False(t, s.broker.Queue(t, s.partitions.Name+".partitions").Exists, "nothing was begun")
}

func TestResizeLocksOthersOut(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 2})
	s.publish(keys(3), 0, 1)
	stop := s.start(s.conn, ignore, consistenthash.ConsumerConfig{})
	conn := s.dial("resize")
	_, err := consistenthash.Resize(t.Context(), conn, s.partitions, 3)
	require.ErrorContains(t, err, "stop all consumers and publishers first")
	require.NoError(t, stop())

	wrong := s.partitions
	wrong.Count = 9
	_, err = consistenthash.Resize(t.Context(), s.dial("wrong"), wrong, 3)
	require.ErrorIs(t, err, consistenthash.ErrCountChanged)

	// As if a Resize had just begun.
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.partitions.Name+".partitions").Consumers == 0 }, "no consumer")
	_, err = ch.QueueDelete(s.partitions.Name+".partitions", true, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(s.partitions.Name+".partitions", true, false, false, false, amqp.Table{"x-queue-type": "classic", "x-max-length": int64(100_020_003)})
	require.NoError(t, err)
	for _, count := range []int{2, 3} {
		p := s.partitions
		p.Count = count
		c, err := consistenthash.NewConsumer(s.dial("early"), p, ignore, consistenthash.ConsumerConfig{})
		require.NoError(t, err)
		err = c.Run(t.Context())
		require.ErrorIs(t, err, consistenthash.ErrCountChanged)
		require.ErrorContains(t, err, "being resized from 2 to 3")
	}
	_, err = consistenthash.Resize(t.Context(), conn, s.partitions, 4)
	require.ErrorContains(t, err, "being resized from 2 to 3")
	_, err = consistenthash.Resize(t.Context(), conn, s.partitions, 3)
	require.NoError(t, err)
}
