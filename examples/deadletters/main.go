// Deadletters is a command line for dead-letter queues: it looks into one, sends messages back, throws them away.
//
//	AMQP_URL=… go run ./examples/deadletters COMMAND [FLAGS] QUEUE
//
//	list     what is in it, a line each           skip     take off a message that nobody can read
//	show     all there is to know of some         demo     all of it, on a broker and with dead letters of its own
//	redrive  send back                            count    how many there are
//	discard  throw away
//
// QUEUE is the queue that is worked on; its dead letters are in QUEUE.dlq. redrive and discard do nothing without being told
// which: by -all, or by flags that say which ones. What comes out of a message is printed so that it cannot do anything to
// a terminal: escapes, control characters, invalid text and characters that turn the writing around are shown as \x1b and
// the like.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C puts back what is in hand, a second one ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "deadletters:", safe(err.Error()))
		os.Exit(1)
	}
}

// commands are all of them, but demo.
var commands = map[string]func(ctx context.Context, c command) error{
	"count": count, "list": list, "show": show, "redrive": redrive, "discard": discard, "skip": skip,
}

// command is a command as it was given.
type command struct {
	options
	letters *retry.DeadLetters
	out     io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 1 && args[0] == "demo" {
		return runDemo(ctx, out)
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: deadletters count|list|show|redrive|discard|skip [flags] QUEUE, or demo; -h after a command lists its flags")
	}
	o, err := parse(args[0], args[1:], out)
	if errors.Is(err, flag.ErrHelp) {
		return nil // it is printed
	}
	if err != nil {
		return err
	}
	url := os.Getenv("AMQP_URL")
	if url == "" {
		return errors.New("AMQP_URL: not set; it names the broker: amqp://user:password@host:5672/vhost")
	}
	conn, err := reconnect.Dial(ctx, url, reconnect.Config{Name: "deadletters"})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return o.on(ctx, conn, out)
}

// on runs the command on a connection.
func (o options) on(ctx context.Context, conn *reconnect.Conn, out io.Writer) error {
	letters, err := retry.NewDeadLetters(conn, o.queue)
	if err != nil {
		return err
	}
	return commands[o.name](ctx, command{o, letters, out})
}
