package reconnect

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMessageID(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789_999_999, time.UTC)
	seen := map[string]bool{}
	for range 10_000 {
		text := newMessageID(at)
		require.False(t, seen[text])
		seen[text] = true
		id := uuid.MustParse(text)
		require.Equal(t, uuid.Version(7), id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
		seconds, nanos := id.Time().UnixTime()
		require.Equal(t, at.Truncate(time.Millisecond), time.Unix(seconds, nanos).UTC())
	}
	assert.Less(t, newMessageID(at), newMessageID(at.Add(time.Microsecond)), "they sort by time within the millisecond")
	assert.Equal(t, 1.0, testing.AllocsPerRun(100, func() { newMessageID(at) }))
}

func BenchmarkMessageID(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			newMessageID(time.Now())
		}
	})
	b.Run("uuid.NewV7", func(b *testing.B) {
		for b.Loop() {
			_ = uuid.Must(uuid.NewV7()).String()
		}
	})
}

func TestPublishErrorText(t *testing.T) {
	m := &Message{Exchange: "x", Key: "k"}
	err := m.fail(ErrUnknown, errors.New("EOF"))
	assert.EqualError(t, err, `reconnect: publish to exchange "x" with key "k": outcome unknown; EOF`)
	returned := &ReturnedError{Exchange: "x"}
	assert.Same(t, returned, m.fail(returned))
}

// A 406 is permanent for the message that it is about, and for no other that was in flight with it.
func TestPublishErrorPermanence(t *testing.T) {
	m := &Message{Exchange: "x", Key: "k"}
	own := &publishError{parts: []error{tooLarge}, ownFault: true}
	assert.True(t, isPermanent(own))
	assert.True(t, isPermanent(fmt.Errorf("wrapped: %w", own)))
	assert.False(t, isPermanent(m.fail(ErrUnknown, tooLarge)))
	assert.False(t, isPermanent(&publishError{parts: []error{noExchange}, ownFault: true}))
	assert.True(t, isPermanent(m.fail(&TopologyError{})))
	assert.True(t, isPermanent(m.notSent(t.Context(), nil, &history{}, tooLarge)), "remembered")
}

// Whether a guilty message's earlier attempt is in doubt.
func TestGuiltyAfterAnEarlierAttempt(t *testing.T) {
	one := func(refusal *amqp.Error, suspects ...suspect) *history {
		return &history{refused: &loss{why: refusal, refusal: refusal, suspects: suspects}}
	}
	x, y := suspect{exchange: "x"}, suspect{exchange: "y"}
	for name, tc := range map[string]struct {
		history *history
		now     *amqp.Error
		doubt   bool
	}{
		"first attempt":                            {&history{}, noExchange, false},
		"the only one to that exchange":            {one(noExchange, x, y), noExchange, false},
		"the exchange may have taken it before":    {one(noExchange, x, x), noExchange, true},
		"the first loss was over something else":   {one(tooLarge, x, y), noExchange, true},
		"what is wrong with a message always was":  {one(tooLarge, x, x), tooLarge, false},
		"the first attempt was lost with the link": {&history{lost: forcedClose}, tooLarge, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Publisher{conn: &Conn{}}
			err := p.guilty(&Message{Exchange: "x", Key: "k"}, tc.history, tc.now)
			assert.Equal(t, tc.doubt, errors.Is(err, ErrUnknown))
			assert.ErrorIs(t, err, tc.now)
		})
	}
}
