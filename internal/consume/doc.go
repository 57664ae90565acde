// Package consume is the one consumer loop behind every worker, subscriber, consumer and server of this module.
//
// A [Loop] runs Concurrency workers. Each of them has a channel of its own and turns one circle: open channel, qos, consume,
// handle, settle; any end of its deliveries (channel or connection lost, cancel by the broker, ack timeout, queue deleted) leads
// back to the top, on a new channel and under a new consumer tag. The loop knows no connection: Config.Supervise hands it one
// channel after the other.
//
//	Supervise ──> generation (one channel's life) ──> spell (one consumer on it: tag, prefetch) ──> handler ──> settler
//
// # Who does what
//
// Two goroutines share a generation. The one Supervise calls owns everything synchronous on the channel (qos, consume, cancel,
// close) and decides: growth, pause, shutdown, loss (generation.go, stop.go). The other one takes the deliveries, runs the handler
// and settles (take.go, batch.go, handle.go, notnow.go), so a message changes goroutines nowhere and a handler that never returns holds up
// nothing but itself. A third one only watches the clock of a shutdown. What they share is the settler (settle.go), behind its lock.
//
// # Settling
//
// The returned error decides: nil acknowledges; NotNow keeps the message and calls the handler again later; anything else, a
// panic too, dead-letters. Acks of the finished prefix are gathered (prefix.go). A message is settled at most once and on the
// channel it came from only: when that is lost, nothing is sent any more, and what could not be settled is counted as stale.
// Before a channel is closed in good order it is made sure that a quorum queue has all of it (proof.go).
//
// A message that is handed back (shutdown, pause, the bound of a waiting message) is returned only after this worker's consumer is
// cancelled, and at shutdown and pause after every consumer of the loop is: else the broker would give it straight back to
// a neighbour that is stopping too, and each such hop costs it one of its deliveries.
//
// # Slow start
//
// Up to RabbitMQ 4.2 every return counts towards the delivery limit, so a worker begins with prefetch 1 after each start and
// each loss and doubles when as many handlers as the prefetch have finished. A running consumer's prefetch cannot be changed, so each
// step cancels the consumer and starts one with a larger prefetch: in this order, not the other way round. With two
// consumers at once on one channel the broker deals to both in turn, so that "all of the old one's, then the new one's" would
// not be the queue's order, and up to 1.5 times the prefetch is unacknowledged. This way the old consumer's messages all precede the
// new one's, and the new one starts when both fit under the prefetch, else when the old one's are handled. The price is that
// for a round trip (in the last steps: for what the old consumer still holds) this worker has no consumer on the queue,
// which only an auto-delete queue would mind: those are not for SlowStart.
//
// # Not now
//
// A worker that waits with a message takes no other: it handles in order. Its prefetch waits with it, unacknowledged, so that no count
// rises. After three such answers in a row, over all workers of the loop and with no success between them, at most one
// handler of the loop runs at a time (a batch worker hands over one message), until one succeeds; whoever waits says why in its
// state. No message is kept beyond 5/6 of ConsumerTimeout after it was delivered: it is handed back with
// all the worker holds, and the worker begins again at prefetch 1, so a long outage returns one message per worker and bound, not a
// full prefetch.
//
// # Ordered
//
// On a queue with a single active consumer a cancel hands the queue to the next consumer while earlier messages are still
// unacknowledged, and a returned message would come after later ones. So an ordered loop never cancels and never hands back singly: it
// finishes the current message, flushes its acks and closes the channel, which returns the rest in order. It does not consume again
// before its last handler has returned.
package consume
