// Retry: a payment service whose bank is away for a while.
//
//	go run ./examples/retry
//
// Payments that fail are tried again after growing delays, until the bank is back. Cards that are refused for good go to the
// dead-letter queue at once. So does a payment that the service itself does not understand: that is mended, and the payment
// sent back. The broker is the one of AMQP_URL; without that the program starts one of its own, in a container or from the
// machine's binaries.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "retry:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	fmt.Printf("RabbitMQ %s (%s)\n", broker.Version, broker.Kind)
	conn, err := reconnect.Dial(ctx, broker.URL, reconnect.Config{Name: "example-retry", Logger: quiet})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return story(ctx, conn, "payments."+uuid.NewString()[:8], os.Stdout)
}

// limit is how long the story may take; it needs about three seconds.
const limit = time.Minute

// policy is seven attempts, after 0.2, 0.4, 0.8, 1.6, 3.2 and 6.4 s: more than the bank is away for, also on a busy machine.
var policy = retry.Policy{MaxAttempts: 7, InitialDelay: 200 * time.Millisecond, Multiplier: 2}

func story(ctx context.Context, conn *reconnect.Conn, name string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := open(ctx, conn, name, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	s.say("The bank does not answer. Each payment waits twice as long as the time before; the queue stays free for others:")
	s.bank.answers.Store(false)
	if err := s.pay(ctx, payment{1, "visa", "EUR"}, payment{2, "amex", "EUR"}, payment{3, "visa", "USD"}); err != nil {
		return err
	}
	if err := s.until(ctx, func() bool { return s.attempts[1] >= 3 && s.attempts[2] >= 3 && s.attempts[3] >= 3 }); err != nil {
		return err
	}
	s.say("\nThe bank is back:")
	s.bank.answers.Store(true)
	if err := s.until(ctx, func() bool { return s.paid[1] && s.paid[2] && s.paid[3] }); err != nil {
		return err
	}

	s.say("\nWhat trying again cannot mend is not tried again: a stolen card, and a currency that our service does not know:")
	if err := s.pay(ctx, payment{4, "stolen", "EUR"}, payment{5, "visa", "EURO"}); err != nil {
		return err
	}
	if err := s.list(ctx, 2); err != nil {
		return err
	}

	s.say("\nThe second one was our own fault. A new version knows EURO, and that payment is sent back:")
	s.bank.knowsEuro.Store(true)
	n, err := s.dead.Redrive(ctx, retry.Selection{Where: func(l retry.DeadLetter) bool { return strings.Contains(l.LastError, "currency") }})
	if err != nil {
		return err
	}
	s.say("   sent back: %d", n)
	if err := s.until(ctx, func() bool { return s.paid[5] }); err != nil {
		return err
	}
	s.say("\nThe other one is a matter for people. It stays, until somebody has looked at it:")
	if err := s.list(ctx, 1); err != nil {
		return err
	}
	if _, err := s.dead.Discard(ctx, retry.Selection{IDs: []string{"payment 4"}}); err != nil {
		return err
	}
	return s.check(ctx)
}
