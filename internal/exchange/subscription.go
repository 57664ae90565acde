package exchange

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// Subscription describes a queue and what is bound to it. Without a Queue it is a live one.
type Subscription struct {
	Exchange           Exchange
	Queue              string
	Keys, Obsolete     []string
	KeyField           string                 // what the caller's type calls Keys; "" is a fanout, without keys
	CheckKey           func(key string) error // of each of Keys
	DeliveryLimit      int
	DeadLetterExchange string
	TTL                time.Duration
	Arguments          amqp.Table
	MaxLength          int64
	Declare            reconnect.Declare
}

// defaultLive is the length of a live subscription's queue.
const defaultLive = 10_000

func (s Subscription) group() group {
	return group{Name: s.Queue, DeliveryLimit: s.DeliveryLimit, MaxLength: s.MaxLength, TTL: s.TTL,
		DeadLetterExchange: s.DeadLetterExchange, Arguments: s.Arguments, Declare: s.Declare}
}

// DeadLetterQueue is the name of the queue in which a durable subscription's failures end.
func (s Subscription) DeadLetterQueue() string { return s.group().DeadLetterQueue() }

// Topology is the exchange and, for a durable subscription, its queues and bindings.
func (s Subscription) Topology() reconnect.Topology {
	t := s.Exchange.Topology()
	if s.Queue == "" {
		return t
	}
	g := s.group().Topology()
	t.Exchanges = append(t.Exchanges, g.Exchanges...)
	t.Queues = g.Queues
	t.Bindings = append(g.Bindings, s.bindings(s.keys(), s.Queue)...)
	t.Obsolete = s.bindings(s.Obsolete, s.Queue)
	return t
}

// keys are those to bind with; a fanout exchange takes no notice of the one it gets.
func (s Subscription) keys() []string {
	if s.KeyField == "" {
		return []string{""}
	}
	return s.Keys
}

func (s Subscription) bindings(keys []string, queue string) []reconnect.Binding {
	var out []reconnect.Binding
	for _, key := range keys {
		out = append(out, reconnect.Binding{Exchange: s.Exchange.Name, Key: key, Queue: queue})
	}
	return out
}

// live is the queue of a live subscription under one of its names.
func (s Subscription) live(name string) reconnect.Queue {
	args := amqp.Table{
		amqp.QueueTypeArg: amqp.QueueTypeClassic,
		argMaxLength:      s.liveLength(),
		argOverflow:       amqp.QueueOverflowDropHead,
	}
	if s.TTL > 0 {
		args[argMessageTTL] = s.TTL.Milliseconds()
	}
	for key, value := range s.Arguments {
		args[key] = value
	}
	return reconnect.Queue{Name: name, Exclusive: true, Arguments: args}
}

func (s Subscription) liveLength() int64 {
	if s.MaxLength > 0 {
		return s.MaxLength
	}
	return defaultLive
}

// livePrefix begins the names of a live subscription's queues. The broker keeps names with "amq." to itself.
func (s Subscription) livePrefix() string {
	name := strings.TrimPrefix(s.Exchange.Name, "amq.")
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "")
	}
	return name + ".live"
}

// freshName is a name that no queue had before.
func (s Subscription) freshName() string {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	return s.livePrefix() + "." + hex.EncodeToString(random[:])
}

// validate returns every fault at once. common is the mode in force for the whole Conn.
func (s Subscription) validate(live bool, common reconnect.Declare) error {
	faults := []error{s.Exchange.Validate("Exchange.", common), s.validateKeys()}
	if live {
		return errors.Join(append(faults, s.validateLive())...)
	}
	if s.Queue == "" {
		faults = append(faults, errors.New("Queue: empty; a durable subscription needs the name of its group"))
		s.Queue = "?"
	}
	if s.DeadLetterExchange != "" && s.DeadLetterExchange == s.Exchange.Name {
		faults = append(faults, errors.New("DeadLetterExchange: is the exchange that is subscribed to"))
	}
	return errors.Join(append(faults, s.group().Validate("Queue", common))...)
}

func (s Subscription) validateLive() error {
	faults := []error{limits(s.MaxLength, s.TTL), arguments(s.Arguments, "Queue")}
	not := func(field string, set bool, why string) {
		if set {
			faults = append(faults, fmt.Errorf("%s: %s", field, why))
		}
	}
	not("Queue", s.Queue != "", "a live subscription has a queue of its own, with a fresh name; named ones are durable (NewSubscriber)")
	not("DeliveryLimit", s.DeliveryLimit != 0, "a live subscription's queue has none")
	not("DeadLetterExchange", s.DeadLetterExchange != "", "a live subscription drops what fails")
	not("Obsolete", len(s.Obsolete) > 0, "a live subscription's queue is new, nothing is bound to it")
	not("Declare", s.Declare != reconnect.Active, "a live subscription's queue cannot exist before")
	return errors.Join(faults...)
}

func (s Subscription) validateKeys() error {
	if s.KeyField == "" {
		return nil
	}
	var faults []error
	if len(s.Keys) == 0 {
		faults = append(faults, fmt.Errorf("%s: none; at least one is needed", s.KeyField))
	}
	for i, key := range s.Keys {
		at := fmt.Sprintf("%s: number %d", s.KeyField, i+1)
		if err := wire.ShortString(at, key); err != nil {
			faults = append(faults, err)
		} else if err := s.CheckKey(key); err != nil {
			faults = append(faults, fmt.Errorf("%s, %q: %w", at, key, err))
		}
	}
	for i, key := range s.Obsolete {
		if slices.Contains(s.Keys, key) {
			faults = append(faults, fmt.Errorf("Obsolete: number %d, %q, is one of %s, too", i+1, key, s.KeyField))
		}
		faults = append(faults, wire.ShortString(fmt.Sprintf("Obsolete: number %d", i+1), key))
	}
	return errors.Join(faults...)
}
