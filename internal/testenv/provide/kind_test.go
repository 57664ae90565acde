package provide

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		name          string
		asked         Kind
		broker, url   string
		want          []Kind
		wantErrorText string
	}{
		{name: "nothing said", want: []Kind{Container, Local}},
		{name: "an address", url: "amqp://elsewhere/", want: []Kind{URL}},
		{name: "a kind", broker: "local", want: []Kind{Local}},
		{name: "a kind beats an address", broker: "container", url: "amqp://elsewhere/", want: []Kind{Container}},
		{name: "the caller beats both", asked: Local, broker: "container", url: "amqp://elsewhere/", want: []Kind{Local}},
		{name: "url without an address", broker: "url", want: []Kind{URL}},
		{name: "nonsense", broker: "cloud", wantErrorText: "WARREN_BROKER"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("WARREN_BROKER", tt.broker)
			t.Setenv("AMQP_URL", tt.url)
			kind, err := chosen(tt.asked)
			if tt.wantErrorText != "" {
				require.ErrorContains(t, err, tt.wantErrorText)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, kind.toTry("AMQP_URL"))
		})
	}
}

func TestFirst(t *testing.T) {
	broken := errors.New("broken")
	got, err := first([]Kind{Container, Local}, func(k Kind) (Kind, error) {
		if k == Container {
			return "", broken
		}
		return k, nil
	})
	require.NoError(t, err)
	require.Equal(t, Local, got)

	_, err = first([]Kind{Container, Local}, func(Kind) (Kind, error) { return "", broken })
	require.ErrorIs(t, err, ErrNone)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "container: broken")
	require.ErrorContains(t, err, "local: broken")
}

func TestAnAddressThatIsSetIsMeant(t *testing.T) {
	t.Setenv("WARREN_BROKER", "")
	t.Setenv(handedAMQPURL, "")
	t.Setenv("AMQP_URL", "amqp://me:secret@127.0.0.1:1/")
	p, err := New("")
	require.NoError(t, err)
	for name, get := range map[string]func() (*RabbitMQ, error){
		"shared":  func() (*RabbitMQ, error) { return p.RabbitMQ(t.Context()) },
		"node":    func() (*RabbitMQ, error) { return p.Node(t.Context()) },
		"program": func() (*RabbitMQ, error) { return StartNode(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := get()
			require.ErrorIs(t, err, ErrNone)
			require.ErrorContains(t, err, "AMQP_URL")
			require.NotContains(t, err.Error(), "secret")
		})
	}
	require.NoError(t, p.Close())
}
