package retry

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A reader whose channel is lost while it gives back what it has in hand still knows how many there are to be taken: those
// in hand, and those it has not got to.
func TestPuttingBackOnALostChannel(t *testing.T) {
	t.Parallel()
	ch, err := testenv.Shared(t).Dial(t).Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Close())
	const total, seen, inHand, own = 300, 85, 34, 3
	newReader := func() *reader {
		r := &reader{ch: ch, queue: testenv.Name(t, "dlq"), kind: kind{quorum: true}, again: true, total: total, seen: seen, own: own, portion: 1}
		for tag := range uint64(inHand) {
			r.held = append(r.held, handed{tag: tag, consumer: "c"})
		}
		return r
	}
	for name, f := range map[string]func(*reader) error{
		"at the end": func(r *reader) error { return r.putBack(t.Context()) },
		"in between": func(r *reader) error { return r.restart(t.Context()) },
		"at the beginning": func(r *reader) error {
			return r.begin(t.Context())
		},
	} {
		r := newReader()
		require.Error(t, f(r), name)
		require.Equal(t, total-seen+inHand-own, r.left(), name)
	}
}
