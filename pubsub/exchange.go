package pubsub

import (
	"github.com/warrenmq/warren/internal/exchange"
	"github.com/warrenmq/warren/reconnect"
)

// Exchange describes a fanout exchange: the event, or the stream of events, that is announced. Only Name is required. It
// is durable. The same value must be used by every publisher and subscriber; to change an existing exchange it has to be
// made anew.
type Exchange struct {
	// Name of the exchange, 1 to 255 bytes.
	Name string

	// Mandatory makes a message that nobody subscribes to a *reconnect.ReturnedError. Default: it is a success, since an
	// event that interests nobody is none that failed.
	Mandatory bool

	// Declare is the mode for the exchange. Of the broker's own, amq.fanout, only Passive and Skip will do.
	Declare reconnect.Declare
}

// Topology is the exchange, as plain data.
func (e Exchange) Topology() reconnect.Topology { return e.inner().Topology() }

func (e Exchange) inner() exchange.Exchange {
	return exchange.Exchange{Kind: "fanout", Name: e.Name, Declare: e.Declare}
}
