package retry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// errAgain ends a pass that has had messages in hand for long.
var errAgain = errors.New("again from the head")

// job is one Redrive or Discard.
type job struct {
	letters *DeadLetters
	what    Selection
	run     string // of a Redrive
	do      func(ctx context.Context, ls []letter) error

	ids   map[string]bool // IDs as a set
	next  time.Time       // when the next one may be, by PerSecond
	first bool            // the message of the reader's probe is meant, and has not come again

	mu     sync.Mutex // of all below: a call may return while its run is still held up by the broker
	n      int        // done
	faults []error    // of messages that stay
	left   int        // such messages that are not in faults
}

func (j *job) move(ctx context.Context) (n int, err error) {
	if err := j.what.validate(); err != nil {
		return 0, err
	}
	if j.what.none() {
		return 0, nil
	}
	j.ids = make(map[string]bool, len(j.what.IDs))
	for _, id := range j.what.IDs {
		j.ids[id] = true
	}
	err = j.letters.run(ctx, func(life context.Context, r *reader) error {
		for {
			j.begin()
			err := j.pass(ctx, life, r)
			if life.Err() != nil {
				return err
			}
			if err == errAgain {
				if err = r.restart(life); err == nil {
					continue
				}
				return err
			}
			return errors.Join(err, r.end(life))
		}
	})
	return j.result(err)
}

// begin forgets what the next pass will find out again.
func (j *job) begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults, j.left = nil, 0
	if j.what.DryRun {
		j.n = 0
	}
}

// result is what the call returns that ended with err.
func (j *job) result(err error) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	faults := slices.Clone(j.faults)
	if j.left > 0 {
		faults = append(faults, fmt.Errorf("and %d more", j.left))
	}
	return j.n, errors.Join(append(faults, err)...)
}

// did counts.
func (j *job) did(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.n += n
}

// remaining is how many more may be done.
func (j *job) remaining() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.what.Limit <= 0 {
		return math.MaxInt
	}
	return j.what.Limit - j.n
}

// pass goes through the queue. What it leaves is held by r.
func (j *job) pass(ctx, life context.Context, r *reader) error {
	// Without the cause: that a channel of ours is closed is no word about a message that is being published.
	work, end := context.WithCancel(context.WithoutCancel(life))
	defer end()
	defer context.AfterFunc(life, end)()
	defer context.AfterFunc(ctx, end)()
	if j.what.picky() || j.what.DryRun { // so that some go back
		if err := r.probe(life); err != nil {
			return err
		}
	}
	j.first = r.first != nil && j.means(letterOf(*r.first, j.letters.queue))
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
			return errAgain
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
		if j.sentBack(letter) {
			r.disown()
		}
		is, room := false, j.remaining()-len(todo.ds)
		if r.isFirst(d) {
			is, j.first = j.first, false
		} else if room > 1 || room == 1 && !j.first { // one is for the first, which comes again
			is = j.means(letter)
		}
		if is {
			todo.ds, todo.ls = append(todo.ds, d), append(todo.ls, letter)
		} else {
			keep = append(keep, d)
		}
	}
	if j.what.DryRun {
		j.did(len(todo.ds))
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

// sentBack tells that l was sent back by this very call, and is here again.
func (j *job) sentBack(l letter) bool { return j.run != "" && l.redrive == j.run }

func (j *job) means(l letter) bool {
	return !j.sentBack(l) && (j.what.IDs == nil || j.ids[l.MessageId]) && (j.what.Where == nil || j.what.Where(l.DeadLetter))
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
	gone, stay, err := j.doing(work, m)
	j.did(len(gone))
	return stay, errors.Join(err, r.ack(life, gone, prefix && len(gone) == len(m.ds)))
}

// doing does a chunk, and returns what of it is done.
func (j *job) doing(work context.Context, m meant) (gone, stay []amqp.Delivery, err error) {
	err = j.do(work, m.ls)
	var each reconnect.BatchError
	switch {
	case errors.As(err, &each) && len(each) == len(m.ds):
		return j.sort(m, each)
	case err != nil:
		return nil, m.ds, err
	}
	return m.ds, nil, nil
}

// sort tells apart what was sent and what stays. The fault of a message is its own; any other ends the call.
func (j *job) sort(m meant, each reconnect.BatchError) (gone, stay []amqp.Delivery, err error) {
	for i, e := range each {
		switch {
		case e == nil:
			gone = append(gone, m.ds[i])
			continue
		case itsOwn(e):
			j.fault(m.ds[i], e)
		case err == nil:
			err = fmt.Errorf("message %q: %w", m.ds[i].MessageId, e)
		}
		stay = append(stay, m.ds[i])
	}
	return gone, stay, err
}

// itsOwn tells whether a message cannot be published, now or ever, whatever else happens.
func itsOwn(err error) bool {
	var bad *wire.Error
	return errors.As(err, &bad) ||
		codeOf(err) == amqp.PreconditionFailed && !errors.Is(err, reconnect.ErrUnknown) && !errors.Is(err, context.Canceled)
}

func (j *job) fault(d amqp.Delivery, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
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
