package testenv_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// faulty is a test that counts its errors and is ended by hand.
type faulty struct {
	testing.TB
	errors int
	end    []func()
}

func (f *faulty) Helper()               {}
func (f *faulty) Errorf(string, ...any) { f.errors++ }
func (f *faulty) Cleanup(fn func())     { f.end = append(f.end, fn) }

// Tidy tells what lasts from what is transient and shared, and sees what is left behind, and that nothing was there.
func TestTidy(t *testing.T) {
	b := testenv.Shared(t)
	ch := channel(t, b.Dial(t))
	for what, tt := range map[string]struct {
		declare func(name string) error
		errors  int
	}{
		"nothing":          {func(string) error { return nil }, 1},
		"a durable queue":  {func(name string) error { return queueDeclare(ch, name, true, false) }, 1},
		"an exclusive one": {func(name string) error { return queueDeclare(ch, name, false, true) }, 1},
		"a transient exchange": {func(name string) error {
			return ch.ExchangeDeclare(name, "fanout", false, false, false, false, nil)
		}, 2},
	} {
		t.Run(what, func(t *testing.T) {
			name := testenv.Name(t, "tidy")
			f := &faulty{TB: t}
			b.Tidy(f, name)
			require.NoError(t, tt.declare(name))
			for _, end := range f.end {
				end()
			}
			require.Equal(t, tt.errors, f.errors)
			_, err := ch.QueueDelete(name, false, false, false)
			require.NoError(t, err)
			require.NoError(t, ch.ExchangeDelete(name, false, false))
		})
	}
}

func queueDeclare(ch *amqp.Channel, name string, durable, exclusive bool) error {
	_, err := ch.QueueDeclare(name, durable, false, exclusive, false, nil)
	return err
}
