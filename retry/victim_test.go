package retry_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// victimEnv makes this binary, instead of running tests, a worker that dies of each message: queue and URL, with a space
// between.
const victimEnv = "WARREN_RETRY_VICTIM"

// deadly is the exit status of a victim.
const deadly = 7

// victim works until it dies.
func victim(queue, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := reconnect.Dial(ctx, url, reconnect.Config{Name: "victim", Logger: quiet})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	r, err := retry.New(ctx, conn, queue, quick)
	if err != nil {
		return err
	}
	w, err := workqueue.NewWorker(conn, workqueue.Queue{Name: queue, DeliveryLimit: 3}, r.Handle(func(context.Context, amqp.Delivery) error {
		os.Exit(deadly)
		return nil
	}), workqueue.WorkerConfig{})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// runVictim is what TestMain does in a victim.
func runVictim(target string) int {
	queue, url, _ := strings.Cut(target, " ")
	fmt.Fprintln(os.Stderr, "the victim survived:", victim(queue, url))
	return 1
}

// A message that kills its process each time ends in the dead-letter queue by the queue's delivery limit: no handler
// returns, so no attempt of ours is counted.
func TestHandlerThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s := newSetupOn(t, broker, broker.URL(), workqueue.Queue{DeliveryLimit: 3})
	s.cleanUp(quick)
	s.send(amqp.Publishing{MessageId: "poison", Headers: amqp.Table{"mine": "kept"}})
	for n := range 4 {
		testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Ready == 1 }, "it waits for victim %d", n+1)
		cmd := exec.CommandContext(s.within(patience), os.Args[0])
		cmd.Env = append(os.Environ(), victimEnv+"="+s.queue.Name+" "+s.url)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, "%s", out)
		require.Equal(t, deadly, cmd.ProcessState.ExitCode(), "%s", out)
	}
	dead := s.drain(s.queue.DeadLetterQueue(), 1)[0]
	require.Equal(t, "delivery_limit", dead.Headers["x-first-death-reason"])
	require.Equal(t, "kept", dead.Headers["mine"])
	require.NotContains(t, dead.Headers, "warren-attempt")
	s.empty(quick)
}
