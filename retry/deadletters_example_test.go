package retry_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
)

// A payment gateway was down for an hour. Its dead letters are looked at, the payments that ran into it go back slowly, and
// those that were refused for good are thrown away.
func ExampleDeadLetters() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "operator"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
	dead, err := retry.NewDeadLetters(conn, "payments") // reads payments.dlq
	if err != nil {
		log.Fatal(err)
	}
	for letter, err := range dead.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q %s after %d attempts: %q\n", letter.MessageId, letter.Reason, letter.Attempt, letter.LastError)
	}
	timeouts := func(l retry.DeadLetter) bool { return strings.Contains(l.LastError, "timeout") }
	n, err := dead.Redrive(ctx, retry.Selection{Where: timeouts, PerSecond: 10})
	log.Printf("%d sent back, %v", n, err)
	refused := func(l retry.DeadLetter) bool { return l.Reason == "permanent" }
	n, err = dead.Discard(ctx, retry.Selection{Where: refused})
	log.Printf("%d thrown away, %v", n, err)
}

// An alarm with the first dead letter, and a gauge.
func ExampleDeadLetters_Watch() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
	dead, err := retry.NewDeadLetters(conn, "payments")
	if err != nil {
		log.Fatal(err)
	}
	before := 0
	err = dead.Watch(ctx, 30*time.Second, func(count int) {
		if count > before {
			log.Printf("ALARM: %d new dead letters of payments", count-before)
		}
		before = count
	})
	log.Print(err)
}
