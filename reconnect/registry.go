package reconnect

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// registry is what a Conn declares again after each reconnect: every entity once, in the order exchanges, queues,
// bindings, each kind in the order in which it came.
type registry struct {
	mu    sync.Mutex
	items map[entity]item
	order []entity
}

func newRegistry() *registry { return &registry{items: map[entity]item{}} }

// admit checks items against each other and against what is remembered: two descriptions of one entity cannot both be on
// the broker, and which of them wins would depend on who came first. It returns the items, with bindings to exclusive
// queues that were declared earlier marked as such.
func (r *registry) admit(items []item) ([]item, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var faults []error
	out := slices.Clone(items)
	seen := map[entity]item{}
	for i, it := range out {
		for _, known := range []map[entity]item{seen, r.items} {
			if other, ok := known[it.entity]; ok {
				faults = append(faults, it.conflict(other))
			}
		}
		seen[it.entity] = it
		if it.binding != nil && r.items[queueEntity(it.binding.Queue)].exclusive {
			out[i].exclusive = true
		}
	}
	return out, errors.Join(faults...)
}

// remember keeps items, and returns those that were not there; an entity that is there keeps its place. Removed bindings
// are forgotten.
func (r *registry) remember(items []item) (added []item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range items {
		known, ok := r.items[it.entity]
		switch {
		case it.unbind:
			r.drop(it.entity)
		case !ok:
			r.items[it.entity] = it
			r.order = append(r.order, it.entity)
			added = append(added, it)
		case known.mode() > it.mode():
			r.items[it.entity] = it // we may declare it after all
		}
	}
	return added
}

func (r *registry) forget(items []item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range items {
		r.drop(it.entity)
	}
}

func (r *registry) drop(e entity) {
	delete(r.items, e)
	r.order = slices.DeleteFunc(r.order, func(o entity) bool { return o == e })
}

// all returns what is remembered in the order in which it has to be declared.
func (r *registry) all() []item {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]item, 0, len(r.order))
	for _, kind := range []string{"exchange", "queue", "binding"} {
		for _, e := range r.order {
			if e.kind == kind {
				out = append(out, r.items[e])
			}
		}
	}
	return out
}

// properties describes an entity that is to be declared, for comparison.
func (it item) properties() map[string]string {
	out := map[string]string{}
	switch {
	case it.exchange != nil:
		out["type"], out["alternate-exchange"] = it.exchange.Kind, it.exchange.Alternate
		out["internal"] = fmt.Sprint(it.exchange.Internal)
		for k, v := range it.exchange.Arguments {
			out[k] = fmt.Sprint(v)
		}
	case it.queue != nil:
		out["x-queue-type"], out["exclusive"] = it.queue.Type, fmt.Sprint(it.queue.Exclusive)
		for k, v := range it.queue.Arguments {
			out[k] = fmt.Sprint(v)
		}
	}
	return out
}

// conflict returns the first difference between two descriptions, nil when there is none or one of them only wants the
// entity to exist.
func (it item) conflict(known item) error {
	if it.mode() != Active || known.mode() != Active {
		return nil
	}
	wanted, existing := it.properties(), known.properties()
	for _, name := range slices.Sorted(maps.Keys(union(wanted, existing))) {
		if wanted[name] != existing[name] {
			return &TopologyError{Entity: it.entity.String(), Argument: name, Wanted: orNone(wanted[name]), Existing: orNone(existing[name]),
				Err: errors.New("described differently on this Conn already")}
		}
	}
	return nil
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func orNone(value string) string {
	if value == "" {
		return "none"
	}
	return value
}
