package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// childEnv makes this binary the program itself.
const childEnv = "DEADLETTERS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		return
	}
	testenv.Main(m)
}

// patience is far above what anything here takes.
const patience = 30 * time.Second

func dial(t *testing.T) *reconnect.Conn {
	t.Helper()
	conn, err := reconnect.Dial(t.Context(), testenv.Shared(t).URL(),
		reconnect.Config{Name: testenv.Name(t, "example"), Logger: testenv.Logger(io.Discard)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestDemo(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	name := testenv.Name(t, "demo")
	var out strings.Builder
	err := demo(t.Context(), dial(t), name, &out)
	t.Log(out.String())
	require.NoError(t, err)
	printable(t, out.String())
	for _, line := range []string{"\n5\n", `message "too-deep"`, "rejected (broker)", "permanent", "4 dead letters", "card refused",
		"| line three", "1 would be sent back", "1 sent back", "2 thrown away", "0 dead letters"} {
		require.Contains(t, out.String(), line)
	}
	for _, queue := range []string{name, name + ".dlq", name + ".retry.10"} {
		require.False(t, broker.Queue(t, queue).Exists, "queue %s is left behind", queue)
	}
}

// printable fails when text could do something to a terminal.
func printable(t *testing.T, text string) {
	t.Helper()
	for i, r := range text {
		require.True(t, r == '\n' || unicode.IsPrint(r) && r != unicode.ReplacementChar, "%q at %d of %q", r, i, text)
	}
}

// graves is a queue whose dead-letter queue is filled by hand.
type graves struct {
	t     *testing.T
	conn  *reconnect.Conn
	queue workqueue.Queue
}

func newGraves(t *testing.T) *graves {
	t.Helper()
	g := &graves{t, dial(t), workqueue.Queue{Name: testenv.Name(t, "jobs")}}
	require.NoError(t, g.conn.Declare(t.Context(), g.queue.Topology()))
	t.Cleanup(func() {
		testenv.Shared(t).DeleteQueue(t, g.queue.Name)
		testenv.Shared(t).DeleteQueue(t, g.queue.DeadLetterQueue())
	})
	return g
}

func (g *graves) bury(msgs ...amqp.Publishing) {
	g.t.Helper()
	pub, err := g.conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
	require.NoError(g.t, err)
	var batch []reconnect.Message
	for _, msg := range msgs {
		batch = append(batch, reconnect.Message{Key: g.queue.DeadLetterQueue(), Publishing: msg})
	}
	require.NoError(g.t, pub.PublishBatch(g.t.Context(), batch))
}

// do runs a command, once the one before has given back what it had in hand: it waits for that itself, but not for longer than a second.
func (g *graves) do(args ...string) (string, error) {
	g.t.Helper()
	broker := testenv.Shared(g.t)
	testenv.Eventually(g.t, patience, func() bool { return broker.Queue(g.t, g.queue.DeadLetterQueue()).Unacked == 0 }, "all are given back")
	var out strings.Builder
	o, err := parse(args[0], append(args[1:], g.queue.Name), &out)
	require.NoError(g.t, err)
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	err = o.on(ctx, g.conn, &out)
	return out.String(), err
}

// Whatever somebody wrote into whichever part of a message: nothing of it reaches the terminal as it is.
func TestNothingRawIsPrinted(t *testing.T) {
	t.Parallel()
	g := newGraves(t)
	bad := "\x1b[31mred\x07\r\b\x00\x9b\u0085\u202e\u2066\u200b\xff\xfe" + strings.Repeat("long ", 30)
	g.bury(amqp.Publishing{
		MessageId: bad, Type: bad, AppId: bad, CorrelationId: bad, ReplyTo: bad, ContentType: bad, ContentEncoding: bad, Body: []byte(bad + "\n" + bad),
		Headers: amqp.Table{bad: bad, "bytes": []byte(bad), "list": []any{bad, amqp.Table{bad: bad}}, "warren-error": bad, "warren-reason": bad,
			"warren-consumer": bad, "warren-exchange": bad, "warren-routing-key": bad, "warren-user-id": bad, "warren-cut": []any{bad},
			"warren-attempt": int64(3)},
	})
	for _, args := range [][]string{{"list"}, {"show"}, {"redrive", "-all", "-dry-run"}} {
		out, err := g.do(args...)
		require.NoError(t, err)
		printable(t, out)
		if args[0] == "show" {
			t.Log(out)
			require.Contains(t, out, `\x1b[31mred`)
		}
	}
	g.bury(amqp.Publishing{MessageId: bad, Headers: amqp.Table{"text": strings.Repeat("x", 65_200)}}) // is refused when it is sent back
	_, err := g.do("redrive", "-all")
	require.Error(t, err)
	printable(t, safe(err.Error()))
}

func TestSafe(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                     "",
		"plain, größer 日本 🙂":   "plain, größer 日本 🙂",
		"\x1b[31m":             `\x1b[31m`,
		"a\nb\tc\r":            `a\x0ab\x09c\x0d`,
		"\x7f\u0080\u009b\xc2": `\x7f\u0080\u009b\xc2`,
		"\u202eexe\U000e0001":  `\u202eexe\U000e0001`,
		`\x1b`:                 `\\x1b`,
		"\xed\xa0\x80\ufffd":   "\\xed\\xa0\\x80\ufffd",
	} {
		require.Equal(t, want, safe(in))
	}
}

func FuzzSafe(f *testing.F) {
	f.Add("\x1b[0m\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range safe(s) {
			require.True(t, unicode.IsPrint(r), "%q", r)
		}
	})
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"redrive jobs":              "either -all, or flags",
		"discard jobs":              "either -all, or flags",
		"discard -all -id 1 jobs":   "either -all, or flags",
		"list":                      "one QUEUE",
		"list a b":                  "one QUEUE",
		"show -n -1 jobs":           "must not be negative",
		"discard -n 1 -older -1h q": "must not be negative",
		"redrive -all jobs":         "",
		"redrive jobs -n 3":         "",
		"show jobs -id 1 -body 10":  "",
		"discard -reason x -id 7 q": "",
	} {
		words := strings.Fields(args)
		_, err := parse(words[0], words[1:], &strings.Builder{})
		if want == "" {
			require.NoError(t, err, args)
		} else {
			require.ErrorContains(t, err, want, args)
		}
	}
	require.ErrorContains(t, run(t.Context(), nil, &strings.Builder{}), "usage")
	require.ErrorContains(t, run(t.Context(), []string{"rm"}, &strings.Builder{}), "usage")
}

func TestFilters(t *testing.T) {
	t.Parallel()
	g := newGraves(t)
	for i := range 6 {
		g.bury(amqp.Publishing{MessageId: strconv.Itoa(i), Body: []byte("b"), Headers: amqp.Table{
			"warren-routing-key": "key-" + strconv.Itoa(i%2), "warren-exchange": "x", "warren-attempt": int64(2),
			"warren-reason": []string{"exhausted", "permanent"}[i%2], "warren-error": fmt.Sprintf("timeout %d", i),
			"warren-last-failure": time.Now().Add(-time.Duration(i) * time.Hour).Format(time.RFC3339Nano)}})
	}
	g.bury(amqp.Publishing{MessageId: "undated"}) // so not known to be older than anything
	for args, want := range map[string]int{
		"": 7, "-reason permanent": 3, "-key key-0": 3, "-error out": 6, "-error 4": 1, "-older 150m": 3, "-id 1 -id 3": 2, "-id 1 -key key-0": 0, "-n 2": 2,
	} {
		out, err := g.do(append([]string{"list"}, strings.Fields(args)...)...)
		require.NoError(t, err)
		require.Contains(t, out, fmt.Sprintf("\n%d dead letters\n", want), args)
	}
	out, err := g.do("discard", "-reason", "permanent", "-n", "2")
	require.NoError(t, err)
	require.Equal(t, "2 thrown away\n", out)
	out, err = g.do("redrive", "-key", "key-0")
	require.NoError(t, err)
	require.Equal(t, "3 sent back to "+g.queue.Name+"\n", out)
	out, err = g.do("count")
	require.NoError(t, err)
	require.Equal(t, "2\n", out)
	_, err = g.do("show", "-id", "none")
	require.ErrorContains(t, err, "none of them is meant")
	_, err = g.do("skip")
	require.ErrorContains(t, err, "every message can be read")
}

// The program is killed in the middle of its work: every message is in one of the queues.
func TestKilled(t *testing.T) {
	t.Parallel()
	const n = 300
	g := newGraves(t)
	var msgs []amqp.Publishing
	for i := range n {
		msgs = append(msgs, amqp.Publishing{MessageId: strconv.Itoa(i)})
	}
	g.bury(msgs...)
	child := exec.Command(os.Args[0], "redrive", "-all", "-rate", "50", g.queue.Name)
	child.Env = append(os.Environ(), childEnv+"=1", "AMQP_URL="+testenv.Shared(t).URL())
	require.NoError(t, child.Start())
	defer child.Process.Kill()
	broker := testenv.Shared(t)
	testenv.Eventually(t, patience, func() bool { return broker.Queue(t, g.queue.Name).Ready > n/10 }, "it works")
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	testenv.Eventually(t, patience, func() bool { return broker.Queue(t, g.queue.DeadLetterQueue()).Unacked == 0 }, "what it had in hand is back")
	moved := broker.Queue(t, g.queue.Name).Ready
	require.Less(t, moved, n)
	seen := map[string]int{}
	ch, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	for _, queue := range []string{g.queue.Name, g.queue.DeadLetterQueue()} {
		for {
			d, ok, err := ch.Get(queue, true)
			require.NoError(t, err)
			if !ok {
				break
			}
			seen[d.MessageId]++
		}
	}
	require.Len(t, seen, n)
	twice := 0
	for _, times := range seen {
		twice += times - 1
	}
	require.LessOrEqual(t, twice, 100)
	t.Logf("killed after %d of %d, %d of them twice", moved, n, twice)
}
