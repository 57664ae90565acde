package prefix

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWrap(t *testing.T) {
	refused := errors.New("reconnect: refused by a queue")
	for _, tt := range []struct {
		name string
		err  error
		said []string
		want string
	}{
		{"of another package", errors.New("encode: no"), nil, "workqueue: encode: no"},
		{"said by reconnect", refused, nil, "workqueue: refused by a queue"},
		{"said twice", errors.New("reconnect: publish: full"), []string{"publish: "}, "workqueue: full"},
		{"not said", refused, []string{"publish: "}, "workqueue: refused by a queue"},
		{"of the package itself", fmt.Errorf("workqueue: none: %w", refused), []string{"workqueue: "}, "workqueue: none: reconnect: refused by a queue"},
		{"in quotes", errors.New(`queue "reconnect: a"`), nil, `workqueue: queue "reconnect: a"`},
		{"several", errors.Join(refused, errors.New("reconnect: closed")), nil, "workqueue: refused by a queue\nclosed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Wrap("workqueue", tt.err, tt.said...)
			require.EqualError(t, err, tt.want)
			require.ErrorIs(t, err, tt.err)
		})
	}
	require.NoError(t, Wrap("workqueue", nil))
}

type permanent struct{ error }

func (permanent) Permanent() bool { return true }

// What an error says by its methods, it still says when it is wrapped.
func TestWrapKeepsTheChain(t *testing.T) {
	var p interface{ Permanent() bool }
	require.ErrorAs(t, Wrap("rpc", permanent{errors.New("reconnect: bad")}), &p)
	require.True(t, p.Permanent())
}
