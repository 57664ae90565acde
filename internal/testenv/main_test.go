package testenv_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/provide"
)

// childVariable makes this test binary a program that starts a node of the kind it names and waits to be killed.
const childVariable = "WARREN_TEST_CHILD"

// tellVariable makes this test binary one that logs a secret, and runs no test.
const tellVariable = "WARREN_TEST_TELL"

func TestMain(m *testing.M) {
	if os.Getenv(tellVariable) != "" {
		testenv.Logger(io.Discard).Info("dialing", "url", "amqp://user:"+testenv.Secret()+"@host/")
	}
	if kind := os.Getenv(childVariable); kind != "" {
		child(provide.Kind(kind))
	}
	testenv.Main(m)
}

func child(kind provide.Kind) {
	p, err := provide.New(kind)
	if err == nil {
		var r *provide.RabbitMQ
		if r, err = p.Node(context.Background()); err == nil {
			fmt.Println("URL", r.URL)
			select {}
		}
	}
	fmt.Println("ERROR", err)
	os.Exit(1)
}

// A binary of which a log line tells a secret fails, and names the line without it.
func TestTellingASecretFailsTheBinary(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), tellVariable+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, string(out), "a secret in the log: ")
	require.Contains(t, string(out), "url=amqp://user:[a secret]")
}

func TestNothingOutlivesAKilledTest(t *testing.T) {
	b := testenv.Shared(t)
	testenv.NeedsNode(t, b)
	cmd := exec.Command(os.Args[0])
	// A killed process leaves its directory; the next one would remove it, but here it goes with the test's own.
	cmd.Env = append(os.Environ(), childVariable+"="+string(b.Kind()), "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "URL ")
	require.True(t, ok, line)
	testenv.Eventually(t, patience, func() bool { return answers(url) }, "the node answers")

	require.NoError(t, cmd.Process.Kill())
	start := time.Now()
	testenv.Eventually(t, 20*time.Second, func() bool { return !answers(url) }, "the node of a killed process ends")
	t.Logf("gone after %v", time.Since(start).Round(time.Millisecond))
}

func answers(url string) bool {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(2 * time.Second)})
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// TestHandedDown plays a child of the suite's runner: what the variables name is used, with its fault tools.
func TestHandedDown(t *testing.T) {
	testenv.NeedsNode(t, testenv.Shared(t))
	env, err := provide.Start(t.Context(), testenv.Shared(t).Kind())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, env.Stop()) })
	require.Regexp(t, `^\d+\.\d+`, env.Version)
	for _, variable := range env.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}

	p, err := provide.New("")
	require.NoError(t, err)
	r, err := p.RabbitMQ(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{env.AMQPURL, env.ManagementURL, env.Version, string(env.Kind)},
		[]string{r.URL, r.ManagementURL, r.Version, string(r.Kind)})
	var sum int
	require.NoError(t, r.Eval(t.Context(), "40 + 2.", &sum))
	require.Equal(t, 42, sum)
	require.ErrorContains(t, r.Eval(t.Context(), "1 = 2.", nil), "badmatch")
	require.Error(t, r.Kill(), "the parent's to end")

	database, err := p.Postgres(t.Context())
	require.NoError(t, err)
	require.Equal(t, env.DatabaseURL, database.URL)
	_, err = database.CreateDatabase(t.Context(), "handed")
	require.NoError(t, err)
	_, err = database.CreateDatabase(t.Context(), "handed")
	require.ErrorContains(t, err, "already exists")
	require.NoError(t, database.DropDatabase(t.Context(), "handed"))
	require.NoError(t, p.Close())
	testenv.Eventually(t, patience, func() bool { return answers(env.AMQPURL) }, "closing what was handed down ends nothing")
}
