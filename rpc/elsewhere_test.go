package rpc_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// elsewhereEnv makes this binary a server: "queue url".
const elsewhereEnv = "WARREN_RPC_SERVER_ELSEWHERE"

// serveElsewhere runs the server in a process of its own.
func serveElsewhere(b testing.TB, url, queue string) {
	program, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), elsewhereEnv+"="+queue+" "+url)
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	cmd.Stderr = os.Stderr
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = in.Close() // which ends it
		require.NoError(b, cmd.Wait())
	})
}

// beElsewhere is that process: the least that a server can be.
func beElsewhere(arg string) error {
	queue, url, _ := strings.Cut(arg, " ")
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(256, 0, false); err != nil {
		return err
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	go func() {
		for d := range in {
			_ = ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId, Body: d.Body})
			_ = d.Ack(false)
		}
	}()
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it
	return nil
}
