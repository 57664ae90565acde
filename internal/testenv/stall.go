package testenv

import (
	"strings"
	"testing"
)

// stallQueue stops, or lets go on, the process behind a queue: a quorum queue's leader, a classic queue itself.
const stallQueue = `
{ok, Queue} = rabbit_amqqueue:lookup(rabbit_misc:r($vhost, queue, $name)),
ok = sys:CHANGE(amqqueue:get_pid(Queue)).`

// StallQueue makes a queue stop answering, while its broker and all other queues go on: it neither confirms nor refuses
// nor delivers, as a quorum queue without its majority. It goes on when resume is called, or else when the test ends.
func (b *Broker) StallQueue(tb testing.TB, name string) (resume func()) {
	tb.Helper()
	b.changeQueue(tb, "suspend", name)
	stalled := true
	resume = func() {
		tb.Helper()
		if stalled {
			stalled = false
			b.changeQueue(tb, "resume", name)
		}
	}
	tb.Cleanup(resume)
	return resume
}

func (b *Broker) changeQueue(tb testing.TB, change, name string) {
	tb.Helper()
	b.evalWith(tb, nil, strings.Replace(stallQueue, "CHANGE", change, 1), map[string]string{"vhost": b.vhost(tb), "name": name})
}
