package consistenthash

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/warrenmq/warren/reconnect"
)

// ErrCountChanged is returned by the first publish and by Run when the partitions exist with another Count; the text says both
// numbers. It is permanent: keys would land in other partitions, beside their own earlier messages. Resize changes the number.
var ErrCountChanged = errors.New("consistenthash: another number of partitions")

// countError is ErrCountChanged with the numbers, and the broker's own words behind it.
type countError struct {
	text string
	err  error
}

func (e *countError) Error() string        { return e.text }
func (e *countError) Unwrap() error        { return e.err }
func (e *countError) Is(target error) bool { return target == ErrCountChanged }
func (e *countError) Permanent() bool      { return true }

// explain says what a refused declaration means here; the text is without the package's name.
func (p Partitions) explain(err error) error {
	var t *reconnect.TopologyError
	if !errors.As(err, &t) {
		return err
	}
	switch {
	case t.Entity == fmt.Sprintf("queue %q", p.guard()) && t.Argument == argMaxCount:
		return &countError{p.mismatch(t.Wanted, t.Existing), err}
	case p.Plugin && t.Entity == fmt.Sprintf("exchange %q", p.Name) && t.Err != nil && strings.Contains(t.Err.Error(), "exchange type"):
		return fmt.Errorf("partitions %q: the broker does not know exchanges of type %s: "+
			"run `rabbitmq-plugins enable %s` on every node, or leave Plugin off: %w", p.Name, pluginKind, pluginName, err)
	}
	return err
}

func (p Partitions) mismatch(wanted, existing string) string {
	n, err := strconv.ParseInt(existing, 10, 64)
	if _, from, to, ok := parsePhase(n); err == nil && ok {
		return fmt.Sprintf("partitions %q: being resized from %d to %d, wanted %s: finish it with the same call of Resize",
			p.Name, from, to, wanted)
	}
	return fmt.Sprintf("partitions %q: wanted %s partitions, but the broker has %s: only Resize changes the number",
		p.Name, wanted, existing)
}
