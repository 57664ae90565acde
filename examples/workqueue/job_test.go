package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// patience is for a machine that does much else; the longest test takes a few seconds on an idle one.
const patience = time.Minute

// setup is a job over the shipped pictures, eight good ones and two broken ones, on a queue of the test's own.
func setup(t *testing.T, url string) job {
	t.Helper()
	testenv.NoLeaks(t)
	album, err := newAlbum([]string{"testdata"}, t.TempDir())
	require.NoError(t, err)
	require.Len(t, album.paths, 10)
	album.log = io.Discard
	conn, err := reconnect.Dial(t.Context(), url, reconnect.Config{
		Name: testenv.Name(t, "example"), Logger: testenv.Logger(io.Discard), BackoffMax: 500 * time.Millisecond})
	require.NoError(t, err)
	queue := workqueue.Queue{Name: testenv.Name(t, "pictures")}
	t.Cleanup(func() {
		require.NoError(t, deleteQueues(conn, queue))
		require.NoError(t, conn.Close(context.Background()))
	})
	return job{conn: conn, queue: queue, album: album, workers: 2}
}

// begin runs the job in the background; the returned function waits for its end.
func begin(t *testing.T, ctx context.Context, j job) func() error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- j.run(ctx) }()
	return func() error {
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return context.DeadlineExceeded
		}
	}
}

// requireSettled checks that the good pictures are done and the broken ones, and nothing else, are in the dead-letter queue.
func requireSettled(t *testing.T, j job) {
	t.Helper()
	done, failed := j.album.counts()
	require.Equal(t, 8, done)
	reasons := map[string]string{}
	for id, err := range failed {
		reasons[filepath.Base(j.album.paths[id])] = err.Error()
	}
	require.Len(t, reasons, 2)
	require.Contains(t, reasons["torn.jpg"], "corrupt picture")
	require.Contains(t, reasons["enormous.png"], "refused before decoding")

	require.Len(t, sizes(t, j.album.out), 8*len(widths), "each of the good ones, whole, and nothing beside")
	requireReady(t, j, 0)

	dead, err := j.deadLetters(t.Context(), 2)
	require.NoError(t, err)
	require.Len(t, dead, 2)
	for _, id := range dead {
		require.Contains(t, failed, id)
	}
}

// requireReady waits until so many messages are ready in the queue.
func requireReady(t *testing.T, j job, n int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool {
		q, err := j.conn.Inspect(t.Context(), j.queue.Name)
		require.NoError(t, err)
		return q.Messages == n
	}, "%d messages are ready", n)
}

func TestEveryPictureIsSettled(t *testing.T) {
	broker := testenv.Shared(t)
	broker.Tidy(t, "pictures")
	j := setup(t, broker.URL())
	require.NoError(t, begin(t, t.Context(), j)())
	requireSettled(t, j)

	var report bytes.Buffer
	require.NoError(t, j.report(&report))
	require.Contains(t, report.String(), "done: 8 of 10 pictures")
	require.Contains(t, report.String(), "in the dead-letter queue: 2")
	require.Contains(t, report.String(), `"testdata/broken/torn.jpg": "corrupt picture`)

	ch := channel(t, broker)
	var d amqp.Delivery
	testenv.Eventually(t, patience, func() (ok bool) { // the report has looked at it, and the broker has it back a moment later
		var err error
		d, ok, err = ch.Get(j.queue.DeadLetterQueue(), false)
		require.NoError(t, err)
		return ok
	}, "a dead letter")
	require.Equal(t, "rejected", d.Headers["x-first-death-reason"], "the reason as the broker gives it")
}

func channel(t *testing.T, broker *testenv.Broker) *amqp.Channel {
	t.Helper()
	ch, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	return ch
}

// The broker goes away when half of the pictures are queued, some of them in the workers' hands, and comes back while the
// other half is being published.
func TestBrokerRestartsHalfWay(t *testing.T) {
	node := testenv.Node(t)
	j := setup(t, node.URL())
	queued, down := make(chan struct{}), make(chan struct{})
	j.halfway = func(context.Context) error {
		close(queued)
		<-down
		return nil
	}
	wait := begin(t, t.Context(), j)
	<-queued
	node.Stop()
	close(down)
	node.Start()
	require.NoError(t, wait())
	requireSettled(t, j)
}

func TestStopDrains(t *testing.T) {
	const queued = 5
	j := setup(t, testenv.Shared(t).URL())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	settling := make(chan struct{})
	j.album.log = &first{func() {
		close(settling)
		<-ctx.Done() // the handler is at work until Ctrl-C has come
	}, new(sync.Once)}
	j.halfway = func(ctx context.Context) error {
		<-settling
		cancel()
		return ctx.Err() // the other half is not queued
	}
	require.NoError(t, begin(t, ctx, j)())

	done, failed := j.album.counts()
	settled := done + len(failed)
	require.Positive(t, settled)
	require.Less(t, settled, queued)
	require.Len(t, sizes(t, j.album.out), done*len(widths), "what was begun is whole")
	requireReady(t, j, queued-settled)
	require.ErrorContains(t, j.report(io.Discard), "were not begun")
}

// first is a writer that does something at the first write.
type first struct {
	do   func()
	once *sync.Once
}

func (w *first) Write(p []byte) (int, error) {
	w.once.Do(w.do)
	return len(p), nil
}

func TestMessagesNameNoFiles(t *testing.T) {
	album, err := newAlbum([]string{"testdata/pictures"}, t.TempDir())
	require.NoError(t, err)
	album.log = io.Discard
	handle := workqueue.JSON(album.handle)
	for _, body := range []string{
		`{"ID": -1}`, `{"ID": 8}`, `{"ID": 1e9}`, `{"ID": 0.5}`, `{"ID": "testdata/pictures/dusk.jpg"}`, `{"ID": "../../etc/passwd"}`,
		`"testdata/pictures/dusk.jpg"`, `null`, ``, `{"ID": 1} {"ID": 2}`,
	} {
		require.Error(t, handle(t.Context(), amqp.Delivery{Body: []byte(body)}), body)
	}
	require.Empty(t, album.outcomes)
	require.Empty(t, sizes(t, album.out))
	require.NoError(t, handle(t.Context(), amqp.Delivery{Body: []byte(`{"ID": 7}`)}))
}

func TestOutcomeOfALostMessageIsOpen(t *testing.T) {
	album, err := newAlbum([]string{"testdata/pictures/stamp.png"}, t.TempDir())
	require.NoError(t, err)
	album.log = io.Discard
	ctx, lose := context.WithCancel(t.Context())
	lose()
	require.Error(t, album.handle(ctx, task{ID: 0}))
	require.Empty(t, album.outcomes, "another worker gets the message")
}

func TestFilesAreFound(t *testing.T) {
	_, err := newAlbum([]string{"testdata/none"}, t.TempDir())
	require.Error(t, err)
	_, err = newAlbum([]string{t.TempDir()}, t.TempDir())
	require.ErrorContains(t, err, "no pictures")
	_, err = newAlbum([]string{"/dev/zero"}, t.TempDir())
	require.ErrorContains(t, err, "neither a file nor a folder")

	album, err := newAlbum([]string{"testdata/broken", "testdata/pictures/stamp.png", "scale.go"}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, []string{"testdata/broken/enormous.png", "testdata/broken/torn.jpg", "testdata/pictures/stamp.png", "scale.go"},
		album.paths, "a file that is named is taken for what it is said to be")
}

func TestPrintedTextIsHarmless(t *testing.T) {
	var log strings.Builder
	album := &album{paths: []string{"\x1b]0;title\a.png"}, log: &log, outcomes: map[int]error{}, settled: make(chan struct{})}
	album.note(0, context.DeadlineExceeded, 0)
	require.NotContains(t, log.String(), "\x1b")
	require.NotContains(t, log.String(), "\a")
}
