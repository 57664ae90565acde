package direct

import (
	"github.com/warrenmq/warren/internal/exchange"
	"github.com/warrenmq/warren/reconnect"
)

// Exchange describes a direct exchange: a message goes to every queue that is bound with exactly its routing key.
// Only Name is required. It is durable. The same value must be used by every publisher and subscriber; to change an
// existing exchange it has to be made anew.
type Exchange struct {
	// Name of the exchange, 1 to 255 bytes.
	Name string

	// Alternate is the exchange that gets what no binding takes; it is not declared by this one. When a queue takes the
	// message there, the publish is a success; otherwise, or when it does not exist, it is a *reconnect.ReturnedError as
	// ever. A subscription of package pubsub to an exchange of this name collects everything. Default: none.
	Alternate string

	// Declare is the mode for the exchange. Of the broker's own, amq.direct, only Passive and Skip will do.
	Declare reconnect.Declare
}

// Topology is the exchange, as plain data.
func (e Exchange) Topology() reconnect.Topology { return e.inner().Topology() }

func (e Exchange) inner() exchange.Exchange {
	return exchange.Exchange{Kind: "direct", Name: e.Name, Alternate: e.Alternate, Declare: e.Declare}
}
