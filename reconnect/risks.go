package reconnect

import (
	"errors"
	"slices"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// risks remembers, across the sessions of a link, what must not be declared on a connection that others use.
type risks struct {
	mu       sync.Mutex
	entities map[entity]bool // whose declaration ended with the loss of the connection
	kinds    map[string]bool // of exchanges, that are known to exist
}

func newRisks() *risks {
	return &risks{entities: map[entity]bool{}, kinds: map[string]bool{}}
}

// has reports whether the broker may close the connection on which it is declared. An exchange of a kind that a plugin
// brings is a risk until one of that kind was declared: a broker without the plugin closes the whole connection (503, up
// to RabbitMQ 3.13.2).
func (r *risks) has(it item) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entities[it.entity] || it.plugin() && !r.kinds[it.exchange.Kind]
}

// note takes err, with which a connection was lost while it was being declared. That may have been the cause: next time
// it is declared apart.
func (r *risks) note(it item, err error) {
	var e *amqp.Error
	if !errors.As(err, &e) || !e.Server || !slices.Contains(hardErrors, e.Code) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entities[it.entity] = true
}

func (r *risks) clear(it item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.entities, it.entity)
	if it.plugin() {
		r.kinds[it.exchange.Kind] = true
	}
}

// hardErrors are the codes with which the broker closes a connection because of what was sent on it.
var hardErrors = []int{amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.ChannelError, amqp.UnexpectedFrame,
	amqp.NotAllowed, amqp.NotImplemented, amqp.InternalError}
