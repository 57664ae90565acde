package outbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
)

// subjects is a publisher for another broker, whose protocol is lines: "PUB subject id length", the body, and an answer for
// each, "+" or "- reason". It is all that a Relay needs of another broker.
type subjects struct {
	address string
	conn    net.Conn
	in      *bufio.Reader
}

// PublishBatch sends all messages without waiting, and then takes the answers.
func (s *subjects) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	if err := s.connect(ctx); err != nil {
		return err // about the batch as a whole: it costs nobody an attempt
	}
	end, bounded := ctx.Deadline()
	if !bounded {
		end = time.Now().Add(10 * time.Second)
	}
	_ = s.conn.SetDeadline(end)
	go func(conn net.Conn) { // an error shows in the answers
		out := bufio.NewWriter(conn)
		for _, m := range msgs {
			fmt.Fprintf(out, "PUB %s.%s %s %d\n%s", m.Exchange, m.Key, m.MessageId, len(m.Body), m.Body)
		}
		_ = out.Flush()
	}(s.conn)
	errs := make(reconnect.BatchError, len(msgs))
	for i := range msgs {
		answer, err := s.in.ReadString('\n')
		switch {
		case err != nil: // it and all behind it may have arrived, or not
			s.conn.Close()
			s.conn = nil
			for ; i < len(msgs); i++ {
				errs[i] = errors.Join(reconnect.ErrUnknown, err)
			}
			return errs
		case answer != "+\n":
			errs[i] = errors.New(strings.TrimSpace(answer)) // it costs an attempt, and in the end the message is parked
		}
	}
	for _, err := range errs {
		if err != nil {
			return errs
		}
	}
	return nil
}

func (s *subjects) connect(ctx context.Context) (err error) {
	if s.conn == nil {
		var d net.Dialer
		if s.conn, err = d.DialContext(ctx, "tcp", s.address); err == nil {
			s.in = bufio.NewReader(s.conn)
		}
	}
	return err
}

// The publisher behind a Relay is a small interface: here another broker's is, which drops the connection now and then.
func TestAnotherBrokersPublisher(t *testing.T) {
	t.Parallel()
	b := startLineBroker(t, 37)
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	box, err := outbox.New(pool, outbox.Config{})
	require.NoError(t, err)
	require.NoError(t, box.Migrate(t.Context()))
	pub := &subjects{address: b.listener.Addr().String()}
	relay, err := outbox.NewRelay(box, pub, outbox.RelayConfig{MaxAttempts: 1})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		if pub.conn != nil {
			pub.conn.Close()
		}
	})

	const n = 200
	require.NoError(t, box.InTx(t.Context(), func(tx pgx.Tx) error {
		msgs := []outbox.Message{{Exchange: "stars", Key: "unknown"}}
		for i := range n {
			msgs = append(msgs, outbox.Message{Exchange: "stars", Key: fmt.Sprint(i), JSON: i})
		}
		return box.Enqueue(t.Context(), tx, msgs...)
	}))
	testenv.Eventually(t, 30*time.Second, func() bool {
		s, err := box.Stats(t.Context())
		return err == nil && s.Waiting == 0
	}, "all are sent")
	first := b.firsts()
	for i := range n {
		require.Equal(t, fmt.Sprintf("stars.%d", i), first[i])
	}
	for p, err := range box.Parked(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, "unknown", p.Key)
		require.Contains(t, p.Reason, "no such subject")
	}
}

// lineBroker is the other broker: it drops a connection after so many messages.
type lineBroker struct {
	listener net.Listener
	patience int

	mu    sync.Mutex
	order []string
	ids   map[string]string
	wrong error
}

func startLineBroker(t *testing.T, patience int) *lineBroker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &lineBroker{listener: listener, patience: patience, ids: map[string]string{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
		require.NoError(t, b.wrong)
	})
	return b
}

func (b *lineBroker) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for range b.patience {
		var subject, id string
		var length int
		if _, err := fmt.Fscanf(in, "PUB %s %s %d\n", &subject, &id, &length); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, in, int64(length)); err != nil {
			return
		}
		if subject == "stars.unknown" {
			fmt.Fprintln(conn, "- no such subject")
			continue
		}
		b.take(subject, id)
		fmt.Fprintln(conn, "+")
	}
}

func (b *lineBroker) take(subject, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, seen := b.ids[subject]
	if !seen {
		b.order, b.ids[subject] = append(b.order, subject), id
	} else if known != id {
		b.wrong = fmt.Errorf("%s came under two ids", subject)
	}
}

func (b *lineBroker) firsts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.order...)
}
