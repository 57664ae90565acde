package reconnect

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// confirms is one channel in confirm mode, shared by any number of callers, with what is unconfirmed on it. Like its
// session it is never reopened.
//
// A slot is taken before a message is sent and given back when its confirmation was seen, so that returns, whose channel
// has room for all slots, never hold up the connection's reader. Lock order: sending, then mu. Neither is held while
// anything waits: the buffer that the driver writes into never blocks.
type confirms struct {
	session  *session
	ch       *amqp.Channel
	slots    chan struct{}
	returns  chan amqp.Return
	onRefuse func(*loss) // told of a channel error before anybody else is
	stalls   *stalls     // told of what is confirmed
	open     *openChannels

	dead  chan struct{} // closed once the channel is gone and loss is set
	loss  *loss
	aside chan struct{} // closed once new messages go elsewhere

	sending sync.Mutex    // held while a message is handed to the driver
	inLine  atomic.Int32  // callers that wait for room in the buffer
	line    chan struct{} // capacity 1: the first of them

	mu      sync.Mutex
	flights map[string]*flight // unconfirmed, by MessageId; equal ones are chained
	spare   *flight            // for use again, chained
	marks   int64              // the last value of markHeader
	acked   uint64             // the highest delivery tag that was acknowledged
	ended   bool
	left    sync.WaitGroup // confirmations whose callers have gone

	tick     int   // counts the looks that guard takes
	read     int64 // the session's, at the last look
	readTick int   // the tick before that had changed
}

// loss is the end of a channel.
type loss struct {
	why      error       // never nil
	refusal  *amqp.Error // the broker closed the channel because of one of the messages; nil when the connection was lost
	inDoubt  int         // messages without a confirmation
	suspects []suspect   // the same, when there is a refusal
}

// suspect is what may have made the broker close a channel.
type suspect struct {
	exchange, key string
	size          int
}

// errGone says that a channel was lost before a message was sent on it, errAgain that what a message waited for has come.
var (
	errGone  = errors.New("channel lost")
	errAgain = errors.New("again")
)

// openConfirms opens a channel in confirm mode. It blocks until the broker has answered or the connection is lost.
func openConfirms(s *session, window int, onRefuse func(*loss), conn *Conn) (*confirms, error) {
	written := s.sock.Written()
	ch, err := s.conn.Channel()
	if err != nil {
		return nil, s.lossOr(err)
	}
	c := &confirms{session: s, ch: ch, onRefuse: onRefuse, stalls: &conn.stalls, open: &conn.channels, dead: make(chan struct{}), aside: make(chan struct{}),
		slots: make(chan struct{}, window), line: make(chan struct{}, 1), flights: make(map[string]*flight)}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	c.returns = ch.NotifyReturn(make(chan amqp.Return, window))
	if err := ch.Confirm(false); err != nil {
		_ = ch.Close()
		return nil, s.lossOr(err)
	}
	s.noteRead(written)
	c.open.add(c)
	if !s.spawn(func() { c.watch(closed) }) {
		c.open.remove(c)
		return nil, ErrClosed // and the channel with the connection
	}
	return c, nil
}

// watch waits for the end of the channel and records it. The driver announces the end before it completes the
// confirmations, so whoever finds one not acknowledged waits for this record before it takes its message out of flights.
func (c *confirms) watch(closed <-chan *amqp.Error) {
	err := <-closed // nil after a close of our own
	c.open.remove(c)
	c.sending.Lock()
	c.mu.Lock()
	c.ended = true
	c.loss = c.lossBy(err)
	c.mu.Unlock()
	c.sending.Unlock()
	if c.loss.refusal != nil {
		c.onRefuse(c.loss)
	}
	close(c.dead)
	c.left.Wait()
}

// lossBy is called with sending and mu held.
func (c *confirms) lossBy(err *amqp.Error) *loss {
	c.drainReturns()
	l := &loss{why: closeError(err)}
	if isMessageRefusal(err) && !c.session.conn.IsClosed() {
		l.refusal = err
	}
	for _, f := range c.flights {
		for ; f != nil; f = f.next {
			if f.confirm == nil || f.confirm.Acked() || f.returned != nil {
				continue
			}
			l.inDoubt++
			if l.refusal != nil {
				l.suspects = append(l.suspects, suspect{exchange: f.exchange, key: f.key, size: f.size})
			}
		}
	}
	return l
}

// alive reports whether the channel is not known to be gone.
func (c *confirms) alive() bool { return !c.ch.IsClosed() }

// softCodes are those with which the broker closes a channel and not the connection.
var softCodes = []int{amqp.ContentTooLarge, amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed}

// isMessageRefusal reports whether the end of a confirm channel is about a message. One over a delivery tag is not: these
// channels acknowledge nothing.
func isMessageRefusal(err *amqp.Error) bool {
	return err != nil && slices.Contains(softCodes, err.Code) && !mentions(err, "delivery tag")
}
