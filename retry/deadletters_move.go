package retry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// Selection says which dead letters. The zero value is all of them; of what is set, all must hold.
type Selection struct {
	// IDs are the MessageIds of those that are meant, of all that have them. nil: any; an empty list: none.
	IDs []string

	// Where, when set, says whether a dead letter is meant. It may be asked again about one after a lost connection. It runs
	// on another goroutine than the caller's.
	Where func(DeadLetter) bool

	// Limit is how many at most, the oldest ones. Default, and -1: no limit.
	Limit int

	// PerSecond is how many a second at most. Default: no limit.
	PerSecond float64

	// DryRun counts them, and does nothing.
	DryRun bool
}

const (
	// moveChunk is how many are confirmed, and then taken off the queue, together; so many come again at most when that is
	// interrupted.
	moveChunk = 100
	// maxReported bounds the messages whose own errors are returned.
	maxReported = 10
)

func (s Selection) validate() error {
	var faults []error
	if s.Limit < -1 {
		faults = append(faults, fmt.Errorf("Limit: %d, must be positive, or 0 or -1 for none", s.Limit))
	}
	if !(s.PerSecond >= 0) || math.IsInf(s.PerSecond, 0) {
		faults = append(faults, fmt.Errorf("PerSecond: %v, must be positive, or 0 for no limit", s.PerSecond))
	}
	return errors.Join(faults...)
}

// none tells that nothing can be meant.
func (s Selection) none() bool { return s.IDs != nil && len(s.IDs) == 0 }

// picky tells that there may be some that are not meant.
func (s Selection) picky() bool { return s.IDs != nil || s.Where != nil }

// Redrive sends dead letters back to the queue that l was made for, to no other, and returns how many. They come as they
// were first delivered, on their first attempt; only an Expiration they have no more. Each is taken off the dead-letter
// queue when the broker has confirmed its copy. Those that are ready when it begins are looked at, oldest first, and what
// is not meant goes back to its place. One that is sent back, fails, and is a dead letter again while this still runs is not
// sent back a second time.
//
// It blocks until all is done or ctx has ended, through lost connections: what was in hand then, 100 messages at most, may
// have been sent back and be sent once more, and is counted again. Whatever else ends it leaves the rest where it was, and
// n says how many were sent: no queue takes them (*reconnect.ReturnedError), the queue is full (reconnect.ErrRefused), an
// alarm (reconnect.ErrBlocked), the dead-letter queue cannot be looked into. A message that cannot be published
// stays alone, and is named in the error.
func (l *DeadLetters) Redrive(ctx context.Context, s Selection) (n int, err error) {
	id := rand.Text()
	j := &job{letters: l, what: s, run: id, do: func(ctx context.Context, ls []letter) error {
		msgs := make([]reconnect.Message, len(ls))
		for i, letter := range ls {
			msgs[i] = reconnect.Message{Key: l.queue, Publishing: letter.back(id)}
		}
		return l.pub.PublishBatch(ctx, msgs)
	}}
	if err := j.move(ctx); err != nil {
		return j.n, l.failed("redrive", err)
	}
	return j.n, nil
}

// Discard is Redrive, but deletes.
func (l *DeadLetters) Discard(ctx context.Context, s Selection) (n int, err error) {
	j := &job{letters: l, what: s, do: func(context.Context, []letter) error { return nil }}
	if err := j.move(ctx); err != nil {
		return j.n, l.failed("discard", err)
	}
	return j.n, nil
}

// job is one Redrive or Discard.
type job struct {
	letters *DeadLetters
	what    Selection
	run     string // of a Redrive
	do      func(ctx context.Context, ls []letter) error

	ids    map[string]bool // IDs as a set
	n      int             // done
	next   time.Time       // when the next one may be, by PerSecond
	faults []error         // of messages that stay
	left   int             // such messages that are not in faults
}

func (j *job) move(ctx context.Context) error {
	if err := j.what.validate(); err != nil {
		return err
	}
	if j.what.none() {
		return nil
	}
	j.ids = make(map[string]bool, len(j.what.IDs))
	for _, id := range j.what.IDs {
		j.ids[id] = true
	}
	err := j.letters.run(ctx, func(life context.Context, r *reader) error {
		j.faults, j.left = nil, 0
		if j.what.DryRun {
			j.n = 0
		}
		err := j.pass(ctx, life, r)
		if life.Err() != nil {
			return err
		}
		return errors.Join(err, r.putBack(life))
	})
	if j.left > 0 {
		j.faults = append(j.faults, fmt.Errorf("and %d more", j.left))
	}
	return errors.Join(append(j.faults, err)...)
}

// remaining is how many more may be done.
func (j *job) remaining() int {
	if j.what.Limit <= 0 {
		return math.MaxInt
	}
	return j.what.Limit - j.n
}

// pass goes through the queue. What it leaves is held by r.
func (j *job) pass(ctx, life context.Context, r *reader) error {
	work, end := context.WithCancelCause(life)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	began := time.Now()
	for j.remaining() > 0 {
		if closed(r.stop) {
			return context.Cause(ctx)
		}
		got, err := r.next(life, j.most())
		if err != nil || len(got) == 0 {
			return err
		}
		if err := j.portion(work, life, r, got); err != nil {
			return err
		}
		if time.Since(began) > j.letters.conn.Config().ConsumerTimeout/2 { // after which the broker would take the channel away
			if err := r.restart(life); err != nil {
				return err
			}
			began = time.Now()
		}
	}
	return nil
}

// most is how many to have in hand: no more than are meant, as far as that is known, nor than can be done in a minute.
func (j *job) most() int {
	most := math.MaxInt
	if !j.what.picky() {
		most = j.remaining()
	}
	if j.what.PerSecond > 0 && j.what.PerSecond < portionMost {
		most = min(most, max(1, int(60*j.what.PerSecond)))
	}
	return most
}

// meant are deliveries to be done, as found.
type meant struct {
	ds []amqp.Delivery
	ls []letter
}

func (m *meant) take(n int) meant {
	out := meant{m.ds[:n], m.ls[:n]}
	m.ds, m.ls = m.ds[n:], m.ls[n:]
	return out
}

// portion does what is meant of a portion. It holds the rest, in its place.
func (j *job) portion(work, life context.Context, r *reader, got []amqp.Delivery) error {
	var todo meant
	var keep []amqp.Delivery
	for _, d := range got {
		letter := letterOf(d, j.letters.queue)
		if len(todo.ds) < j.remaining() && j.means(letter) {
			todo.ds, todo.ls = append(todo.ds, d), append(todo.ls, letter)
		} else {
			keep = append(keep, d)
		}
	}
	if j.what.DryRun {
		j.n += len(todo.ds)
		keep, todo = got, meant{}
	}
	var err error
	for err == nil && len(todo.ds) > 0 {
		chunk := todo.take(min(len(todo.ds), j.chunk()))
		var stay []amqp.Delivery
		stay, err = j.chunkDone(work, life, r, chunk, len(keep) == 0)
		keep = append(keep, stay...)
	}
	keep = append(keep, todo.ds...)
	slices.SortFunc(keep, func(a, b amqp.Delivery) int { return int(a.DeliveryTag) - int(b.DeliveryTag) })
	for _, d := range keep {
		r.hold(d)
	}
	return err
}

func (j *job) means(l letter) bool {
	if j.run != "" && l.redrive == j.run {
		return false // it is back already
	}
	return (j.what.IDs == nil || j.ids[l.MessageId]) && (j.what.Where == nil || j.what.Where(l.DeadLetter))
}

// chunk is how many to do at once.
func (j *job) chunk() int {
	if j.what.PerSecond > 0 {
		return int(max(1, min(moveChunk, j.what.PerSecond/10)))
	}
	return moveChunk
}

// chunkDone does a chunk and takes it off the queue. It returns what of it stays. prefix tells that nothing of the portion that
// comes before it stays.
func (j *job) chunkDone(work, life context.Context, r *reader, m meant, prefix bool) (stay []amqp.Delivery, err error) {
	if err := j.pace(work, len(m.ds)); err != nil {
		return m.ds, err
	}
	err = j.do(work, m.ls)
	gone := m.ds
	var each reconnect.BatchError
	if errors.As(err, &each) && len(each) == len(m.ds) {
		gone, stay, err = j.sort(m, each)
	} else if err != nil {
		gone, stay = nil, m.ds
	}
	j.n += len(gone)
	return stay, errors.Join(err, r.ack(life, gone, prefix && len(gone) == len(m.ds)))
}

// sort tells apart what was sent and what stays. The fault of a message is its own; any other ends the call.
func (j *job) sort(m meant, each reconnect.BatchError) (gone, stay []amqp.Delivery, err error) {
	for i, e := range each {
		switch {
		case e == nil:
			gone = append(gone, m.ds[i])
			continue
		case isPermanent(e) || codeOf(e) == amqp.PreconditionFailed:
			j.fault(m.ds[i], e)
		case err == nil:
			err = fmt.Errorf("message %q: %w", m.ds[i].MessageId, e)
		}
		stay = append(stay, m.ds[i])
	}
	return gone, stay, err
}

func (j *job) fault(d amqp.Delivery, err error) {
	if len(j.faults) == maxReported {
		j.left++
		return
	}
	j.faults = append(j.faults, fmt.Errorf("message %q stays: %w", d.MessageId, err))
}

// pace waits until n more may be done.
func (j *job) pace(ctx context.Context, n int) error {
	if j.what.PerSecond == 0 {
		return nil
	}
	now := time.Now()
	if j.next.Before(now) {
		j.next = now
	}
	wait := j.next.Sub(now)
	j.next = j.next.Add(time.Duration(float64(n) / j.what.PerSecond * float64(time.Second)))
	return pause(ctx, wait)
}
