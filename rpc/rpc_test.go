package rpc_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/rpc"
)

type quote struct{ SKU string }
type price struct{ Cents int }

func TestCallAnswersItsOwnRequest(t *testing.T) {
	s := newSetup(t)
	s.serve(rpc.JSON(func(_ context.Context, q quote) (price, error) {
		if q.SKU == "" {
			return price{}, errors.New("no such thing")
		}
		return price{Cents: len(q.SKU)}, nil
	}), rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	p, err := rpc.Call[price](t.Context(), c, s.queue, quote{"abc"})
	require.NoError(t, err)
	require.Equal(t, price{3}, p)
	_, err = rpc.Call[price](t.Context(), c, s.queue, quote{})
	var remote *rpc.RemoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, &rpc.RemoteError{Code: "error", Message: "no such thing"}, remote)
	require.Zero(t, c.Pending())
}
