package reconnect

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestSmoke(t *testing.T) {
	b := testenv.Shared(t)
	name := testenv.Name(t, "smoke")
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c, err := Dial(t.Context(), b.URL(), Config{Name: name, Logger: log, OnState: func(s State) { fmt.Println(s) }})
	require.NoError(t, err)
	q := testenv.Name(t, "q")
	top := Topology{Queues: []Queue{{Name: q, Arguments: amqp.Table{"x-delivery-limit": 20}}}}
	require.NoError(t, c.Declare(t.Context(), top))
	err = c.Declare(t.Context(), Topology{Queues: []Queue{{Name: q, Arguments: amqp.Table{"x-delivery-limit": 10}}}})
	fmt.Println(err)
	c2, err := Dial(t.Context(), b.URL(), Config{Name: name + "x"})
	require.NoError(t, err)
	fmt.Println(c2.Declare(t.Context(), Topology{Queues: []Queue{{Name: q, Arguments: amqp.Table{"x-delivery-limit": 10}}}, Exchanges: []Exchange{{Name: "foo", Kind: "x-nonsense"}}}))
	require.NoError(t, c2.Close(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{}, 10)
	done := make(chan error, 1)
	go func() {
		done <- c.Supervise(ctx, "w", top, func(ctx context.Context, ch *amqp.Channel) error {
			ds, err := ch.ConsumeWithContext(ctx, q, "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			started <- struct{}{}
			for range ds {
			}
			return nil
		})
	}()
	<-started
	t0 := time.Now()
	fmt.Println("cut", b.CutConnections(t, name))
	<-started
	fmt.Println("again after", time.Since(t0))
	b.DeleteQueue(t, q)
	<-started
	b.CloseChannels(t, name)
	<-started
	fmt.Println(c.Ping(t.Context()), c.State())
	cancel()
	fmt.Println(<-done)
	require.NoError(t, c.Close(t.Context()))
	_, err = Dial(t.Context(), b.URL()+"nonexisting", Config{})
	fmt.Println(err)
}
