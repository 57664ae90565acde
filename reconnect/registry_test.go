package reconnect

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// itemsOf returns the items of a topology, admitted by r.
func itemsOf(t *testing.T, r *registry, top Topology) []item {
	t.Helper()
	items, err := top.items(Active)
	require.NoError(t, err)
	items, err = r.admit(items)
	require.NoError(t, err)
	return items
}

func names(items []item) []string {
	var out []string
	for _, it := range items {
		out = append(out, it.entity.name)
	}
	return out
}

func TestRegistryKeepsEachOnceInOrder(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	added := r.remember(itemsOf(t, r, Topology{Queues: []Queue{{Name: "q2"}}, Bindings: []Binding{{Exchange: "e1", Queue: "q2"}}}))
	require.Len(t, added, 2)
	top := Topology{Exchanges: []Exchange{{Name: "e2", Kind: "topic"}, {Name: "e1", Kind: "topic"}}, Queues: []Queue{{Name: "q1"}, {Name: "q2"}}}
	require.Equal(t, []string{"e2", "e1", "q1"}, names(r.remember(itemsOf(t, r, top))))
	require.Empty(t, r.remember(itemsOf(t, r, top)))
	require.Equal(t, []string{"e2", "e1", "q2", "q1", `"e1" -> queue "q2" by ""`}, names(r.all()))

	r.remember(itemsOf(t, r, Topology{Obsolete: []Binding{{Exchange: "e1", Queue: "q2"}}}))
	r.forget(itemsOf(t, r, Topology{Queues: []Queue{{Name: "q2"}}}))
	require.Equal(t, []string{"e2", "e1", "q1"}, names(r.all()))
	r.remember(itemsOf(t, r, Topology{Queues: []Queue{{Name: "q2"}}}))
	require.Equal(t, []string{"e2", "e1", "q1", "q2"}, names(r.all()), "what was forgotten takes a new place")
}

func TestRegistryRefusesTwoDescriptions(t *testing.T) {
	t.Parallel()
	known := Topology{
		Exchanges: []Exchange{{Name: "e", Kind: "topic", Alternate: "alt"}},
		Queues:    []Queue{{Name: "q", Arguments: amqp.Table{"x-max-length": 5}}, {Name: "passive", Declare: Passive}},
	}
	for name, tc := range map[string]struct {
		top  Topology
		want *TopologyError
	}{
		"same again":         {known, nil},
		"passive beside":     {Topology{Queues: []Queue{{Name: "q", Declare: Passive}}}, nil},
		"skipped beside":     {Topology{Exchanges: []Exchange{{Name: "e", Declare: Skip}}}, nil},
		"active beside":      {Topology{Queues: []Queue{{Name: "passive", Type: "classic"}}}, nil},
		"other kind":         {Topology{Exchanges: []Exchange{{Name: "e", Kind: "fanout", Alternate: "alt"}}}, &TopologyError{Entity: `exchange "e"`, Argument: "type", Wanted: "fanout", Existing: "topic"}},
		"no alternate":       {Topology{Exchanges: []Exchange{{Name: "e", Kind: "topic"}}}, &TopologyError{Entity: `exchange "e"`, Argument: "alternate-exchange", Wanted: "none", Existing: "alt"}},
		"internal":           {Topology{Exchanges: []Exchange{{Name: "e", Kind: "topic", Alternate: "alt", Internal: true}}}, &TopologyError{Entity: `exchange "e"`, Argument: "internal", Wanted: "true", Existing: "false"}},
		"other value":        {Topology{Queues: []Queue{{Name: "q", Arguments: amqp.Table{"x-max-length": 6}}}}, &TopologyError{Entity: `queue "q"`, Argument: "x-max-length", Wanted: "6", Existing: "5"}},
		"one more argument":  {Topology{Queues: []Queue{{Name: "q", Arguments: amqp.Table{"x-max-length": 5, "x-expires": 1}}}}, &TopologyError{Entity: `queue "q"`, Argument: "x-expires", Wanted: "1", Existing: "none"}},
		"other type":         {Topology{Queues: []Queue{{Name: "q", Type: "classic", Arguments: amqp.Table{"x-max-length": 5}}}}, &TopologyError{Entity: `queue "q"`, Argument: "x-queue-type", Wanted: "classic", Existing: "quorum"}},
		"within one":         {Topology{Queues: []Queue{{Name: "new"}, {Name: "new", Type: "classic"}}}, &TopologyError{Entity: `queue "new"`, Argument: "x-queue-type", Wanted: "classic", Existing: "quorum"}},
		"within one, equal":  {Topology{Queues: []Queue{{Name: "new"}, {Name: "new"}}}, nil},
		"integers are equal": {Topology{Queues: []Queue{{Name: "q", Arguments: amqp.Table{"x-max-length": int64(5)}}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry()
			r.remember(itemsOf(t, r, known))
			items, err := tc.top.items(Active)
			require.NoError(t, err)
			_, err = r.admit(items)
			if tc.want == nil {
				require.NoError(t, err)
				return
			}
			var fault *TopologyError
			require.ErrorAs(t, err, &fault)
			require.ErrorContains(t, fault.Err, "described differently")
			fault.Err = nil
			require.Equal(t, tc.want, fault)
		})
	}
}

func TestRegistryActiveBesidePassive(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	r.remember(itemsOf(t, r, Topology{Queues: []Queue{{Name: "q", Declare: Passive}}}))
	r.remember(itemsOf(t, r, Topology{Queues: []Queue{{Name: "q", Type: "classic"}}}))
	require.Equal(t, Active, r.all()[0].mode(), "declared after all")
	r.remember(itemsOf(t, r, Topology{Queues: []Queue{{Name: "q", Declare: Passive}}}))
	require.Equal(t, Active, r.all()[0].mode())
}

func TestRegistryKnowsBindingsOfExclusiveQueues(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	r.remember(itemsOf(t, r, Topology{Queues: []Queue{{Name: "mine", Exclusive: true}, {Name: "q"}}}))
	items := itemsOf(t, r, Topology{Bindings: []Binding{{Exchange: "e", Queue: "mine"}, {Exchange: "e", Queue: "q"}, {Exchange: "e", ToExchange: "f"}}})
	require.Equal(t, []bool{true, false, false}, []bool{items[0].exclusive, items[1].exclusive, items[2].exclusive})
}
