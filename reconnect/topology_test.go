package reconnect

import (
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestTopologyNamesEveryFault(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	one := func(e ...Exchange) Topology { return Topology{Exchanges: e} }
	queue := func(q ...Queue) Topology { return Topology{Queues: q} }
	bind := func(b ...Binding) Topology { return Topology{Bindings: b} }
	for name, tc := range map[string]struct {
		top  Topology
		want []string // beginnings of the lines
	}{
		"exchange without a name":        {one(Exchange{Kind: "fanout"}), []string{`exchange "": Name: empty`}},
		"exchange without a kind":        {one(Exchange{Name: "e"}), []string{`exchange "e": Kind: empty`}},
		"reserved exchange":              {one(Exchange{Name: "amq.topic", Kind: "topic"}), []string{`exchange "amq.topic": Name: `}},
		"reserved but passive":           {one(Exchange{Name: "amq.topic", Declare: Passive}), nil},
		"passive without a name":         {one(Exchange{Declare: Passive}), []string{`exchange "": Name: empty`}},
		"long alternate and kind":        {one(Exchange{Name: "e", Kind: long, Alternate: long}), []string{`exchange "e": Kind: 256 bytes`, `exchange "e": Alternate: 256 bytes`}},
		"exchange mode":                  {one(Exchange{Name: "e", Kind: "fanout", Declare: -1}), []string{`exchange "e": Declare: -1 is not a mode`}},
		"exchange arguments":             {one(Exchange{Name: "e", Kind: "fanout", Arguments: amqp.Table{"a": []string{"b"}}}), []string{`exchange "e": Arguments["a"]: `}},
		"alternate twice":                {one(Exchange{Name: "e", Kind: "fanout", Arguments: amqp.Table{"alternate-exchange": "b"}}), []string{`exchange "e": Arguments: alternate-exchange is set by Alternate`}},
		"queue without a name":           {queue(Queue{}), []string{`queue "": Name: empty`}},
		"long queue":                     {queue(Queue{Name: long}), []string{`queue "` + long + `": Name: 256 bytes, at most 255`}},
		"longest queue":                  {queue(Queue{Name: long[1:]}), nil},
		"reserved queue":                 {queue(Queue{Name: "amq.q"}), []string{`queue "amq.q": Name: `}},
		"type":                           {queue(Queue{Name: "q", Type: "mirrored"}), []string{`queue "q": Type: "mirrored" is not quorum, classic or stream`}},
		"exclusive quorum":               {queue(Queue{Name: "q", Type: "quorum", Exclusive: true}), []string{`queue "q": Type: an exclusive queue can only be classic`}},
		"type twice":                     {queue(Queue{Name: "q", Arguments: amqp.Table{"x-queue-type": "classic"}}), []string{`queue "q": Arguments: x-queue-type is set by Type`}},
		"a duration":                     {queue(Queue{Name: "q", Arguments: amqp.Table{"x-message-ttl": time.Second}}), []string{`queue "q": Arguments["x-message-ttl"]: `}},
		"binding to nothing":             {bind(Binding{Exchange: "e"}), []string{`binding "e" -> queue "" by "": Queue, ToExchange: one of the two must be set`}},
		"binding to both":                {bind(Binding{Exchange: "e", Queue: "q", ToExchange: "f"}), []string{`binding "e" -> exchange "f" by "": Queue, ToExchange: one of the two must be set`}},
		"binding of the default":         {bind(Binding{Queue: "q"}), []string{`binding "" -> queue "q" by "": Exchange: empty`}},
		"long key":                       {bind(Binding{Exchange: "e", Queue: "q", Key: long}), []string{`binding "e" -> queue "q" by "` + long + `": Key: 256 bytes`}},
		"binding arguments":              {bind(Binding{Exchange: "e", Queue: "q", Arguments: amqp.Table{"a": struct{}{}}}), []string{`binding to exchange "e": Arguments["a"]: `}},
		"obsolete binding":               {Topology{Obsolete: []Binding{{Queue: "q"}}}, []string{`binding "" -> queue "q" by "": Exchange: empty`}},
		"bound and obsolete":             {Topology{Bindings: []Binding{{Exchange: "e", Queue: "q"}}, Obsolete: []Binding{{Exchange: "e", Queue: "q"}}}, []string{`binding "e" -> queue "q" by "": Obsolete: listed in Bindings, too`}},
		"several faults of several kind": {Topology{Exchanges: []Exchange{{Name: "e"}}, Queues: []Queue{{Name: "q", Type: "x"}}, Bindings: []Binding{{Exchange: "e"}}}, []string{`exchange "e": Kind`, `queue "q": Type`, `binding "e"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := tc.top.items(Active)
			if tc.want == nil {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			lines := strings.Split(err.Error(), "\n")
			require.Len(t, lines, len(tc.want), "%q", lines)
			for i, want := range tc.want {
				require.True(t, strings.HasPrefix(lines[i], want), "%s\nshould begin with\n%s", lines[i], want)
			}
		})
	}
}

// described is what a topology declares, as text.
func described(t *testing.T, top Topology, mode Declare) []string {
	t.Helper()
	items, err := top.items(mode)
	require.NoError(t, err)
	var out []string
	for _, it := range items {
		text := it.entity.String()
		switch {
		case it.unbind:
			text = "no " + text
		case it.binding == nil:
			text += []string{"", " passive", " skipped"}[it.mode()]
		}
		if it.exclusive {
			text += " exclusive"
		}
		out = append(out, text)
	}
	return out
}

var everything = Topology{
	Exchanges: []Exchange{{Name: "a", Kind: "fanout"}, {Name: "b", Declare: Passive}, {Name: "c", Declare: Skip}},
	Queues: []Queue{{Name: "z"}, {Name: "mine", Exclusive: true}, {Name: "theirs", Declare: Passive},
		{Name: "unseen", Declare: Skip}},
	Bindings: []Binding{{Exchange: "a", Queue: "z", Key: "k"}, {Exchange: "a", Queue: "mine"}, {Exchange: "a", Queue: "theirs"},
		{Exchange: "a", Queue: "unseen"}, {Exchange: "a", ToExchange: "b"}},
	Obsolete: []Binding{{Exchange: "a", Queue: "z", Key: "old"}, {Exchange: "a", Queue: "theirs", Key: "old"}},
}

func TestTopologyOrderAndModes(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		`exchange "a"`, `exchange "b" passive`, `exchange "c" skipped`,
		`queue "z"`, `queue "mine" exclusive`, `queue "theirs" passive`, `queue "unseen" skipped`,
		`binding "a" -> queue "z" by "k"`, `binding "a" -> queue "mine" by "" exclusive`, `binding "a" -> exchange "b" by ""`,
		`no binding "a" -> queue "z" by "old"`,
	}, described(t, everything, Active), "nothing is bound to a queue of somebody else's")
	require.Equal(t, []string{
		`exchange "a" passive`, `exchange "b" passive`, `exchange "c" skipped`,
		`queue "z" passive`, `queue "mine" exclusive`, `queue "theirs" passive`, `queue "unseen" skipped`,
		`binding "a" -> queue "mine" by "" exclusive`,
	}, described(t, everything, Passive), "the stricter mode wins, but nobody else can make an exclusive queue")
	require.Equal(t, []string{
		`exchange "a" skipped`, `exchange "b" skipped`, `exchange "c" skipped`,
		`queue "z" skipped`, `queue "mine" exclusive`, `queue "theirs" skipped`, `queue "unseen" skipped`,
		`binding "a" -> queue "mine" by "" exclusive`,
	}, described(t, everything, Skip))
}

func TestTopologyArgumentsAreWide(t *testing.T) {
	t.Parallel()
	args := amqp.Table{"int": 5_000_000_000, "int8": int8(-1), "int16": int16(2), "int32": int32(3), "int64": int64(4), "byte": byte(5),
		"uint16": uint16(6), "uint32": uint32(math.MaxUint32), "uint": uint(7), "uint64": uint64(8), "text": "9", "truth": true, "none": nil}
	items, err := Topology{Queues: []Queue{{Name: "q", Arguments: args}}}.items(Active)
	require.NoError(t, err)
	require.Equal(t, amqp.Table{"int": int64(5_000_000_000), "int8": int64(-1), "int16": int64(2), "int32": int64(3), "int64": int64(4),
		"byte": int64(5), "uint16": int64(6), "uint32": int64(math.MaxUint32), "uint": int64(7), "uint64": int64(8), "text": "9",
		"truth": true, "none": nil}, items[0].queue.Arguments)
	require.Equal(t, 5_000_000_000, args["int"], "the caller's table is not touched")
	require.Equal(t, "quorum", items[0].queue.Type)

	_, err = Topology{Queues: []Queue{{Name: "q", Arguments: amqp.Table{"x": uint64(math.MaxUint64)}}}}.items(Active)
	require.ErrorContains(t, err, `Arguments["x"]`)
}

func TestABindingWithoutEndIsRefused(t *testing.T) {
	t.Parallel()
	cyclic := amqp.Table{}
	cyclic["self"] = cyclic
	b := Binding{Exchange: "amq.direct", Queue: "q", Arguments: cyclic}
	for _, topology := range []Topology{{Bindings: []Binding{b}}, {Obsolete: []Binding{b}}} {
		_, err := topology.items(Active)
		require.ErrorContains(t, err, `binding to exchange "amq.direct": Arguments`)
	}
}
