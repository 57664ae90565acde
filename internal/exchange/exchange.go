package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// Exchange describes an exchange.
type Exchange struct {
	Kind      string // fanout, direct, topic
	Name      string
	Alternate string
	Declare   reconnect.Declare
}

// Topology is the exchange alone.
func (e Exchange) Topology() reconnect.Topology {
	return reconnect.Topology{Exchanges: []reconnect.Exchange{
		{Name: e.Name, Kind: e.Kind, Alternate: e.Alternate, Declare: e.Declare}}}
}

// Validate returns every fault of the description, each beginning with at and the field's name. common is the mode in
// force for the whole Conn.
func (e Exchange) Validate(at string, common reconnect.Declare) error {
	faults := []error{
		brokersOwn(at, e.Name, max(e.Declare, common)), existingName(at+"Name", e.Name, max(e.Declare, common)),
		wire.ShortString(at+"Alternate", e.Alternate), mode(at+"Declare", e.Declare),
	}
	if e.Alternate != "" && e.Alternate == e.Name {
		faults = append(faults, fmt.Errorf("%sAlternate: is the exchange itself", at))
	}
	return errors.Join(faults...)
}

// brokersOwn says how to use an exchange that nobody can declare.
func brokersOwn(at, name string, declare reconnect.Declare) error {
	if declare == reconnect.Active && strings.HasPrefix(name, "amq.") {
		return fmt.Errorf("%sDeclare: must be Passive, or Skip, for %q: the broker's own exchanges cannot be declared", at, name)
	}
	return nil
}

// existingName checks the name of something that is declared in a mode: what exists may have one that cannot be given.
func existingName(field, name string, declare reconnect.Declare) error {
	if declare != reconnect.Passive && declare != reconnect.Skip {
		return wire.Name(field, name)
	}
	if name == "" {
		return fmt.Errorf("%s: empty", field)
	}
	return wire.ShortString(field, name)
}

func mode(field string, d reconnect.Declare) error {
	if d < reconnect.Active || d > reconnect.Skip {
		return fmt.Errorf("%s: %d is not a mode", field, d)
	}
	return nil
}

// commonMode is the Conn's, for a Conn that may be nil.
func commonMode(conn *reconnect.Conn) reconnect.Declare {
	if conn == nil {
		return reconnect.Active
	}
	return conn.Config().Declare
}

// named returns what an error calls the exchange.
func named(name string) string { return fmt.Sprintf("exchange %q", cmp.Or(name, "?")) }
