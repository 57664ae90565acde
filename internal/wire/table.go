package wire

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	maxDepth = 16       // RabbitMQ takes more; amqp091-go cannot read more than 32
	maxSize  = 64 << 10 // half of the default frame, since a broker adds headers when it dead-letters

	// maxElements is what amqp091-go reads of one table or array; at more the reader's connection ends.
	maxElements = 8192

	maxFaults = 10 // of one table that are named
)

// Table checks a table that goes to the broker as it stands: the kinds of its values, names of at most 255 bytes, at
// most 16 levels of tables and arrays inside it, at most 8192 entries each, and at most 64 KiB encoded. path names the
// table in errors, which go on from there: path["a"]["b"][3].
func Table(path string, t amqp.Table) error {
	if len(t) == 0 {
		return nil
	}
	w := walker{root: path, limit: maxSize}
	w.table(t, 0)
	return w.result()
}

// walker goes through a table once, adding up its encoded size and collecting faults. The path is kept in place, so that
// nothing is allocated unless there is a fault.
type walker struct {
	root  string
	limit int // on size
	size  int
	path  [maxDepth + 1]step
	found faults
	more  int // faults found beyond maxFaults
}

// step is one level of the path to a value: a name, or an index when the container is an array.
type step struct {
	name  string
	index int
}

const named = -1 // the index of a step that has a name

// table walks the entries of t, which lie depth containers below the root.
func (w *walker) table(t amqp.Table, depth int) {
	w.size += 4
	if len(t) > maxElements {
		w.fault(depth-1, "%d entries, at most %d", len(t), maxElements)
	}
	for name, v := range t {
		if w.size > w.limit {
			return // also what ends a walk through a table that contains itself
		}
		w.path[depth] = step{name, named}
		if len(name) > maxShort {
			w.fault(depth-1, "name %s: %d bytes, at most %d", quote(name), len(name), maxShort)
		}
		w.size += 1 + len(name)
		w.value(v, depth)
	}
}

func (w *walker) array(a []any, depth int) {
	w.size += 4
	if len(a) > maxElements {
		w.fault(depth-1, "%d elements, at most %d", len(a), maxElements)
	}
	for i, v := range a {
		if w.size > w.limit {
			return
		}
		w.path[depth] = step{index: i}
		w.value(v, depth)
	}
}

// value adds the encoded size of v, its type octet included, and checks v.
func (w *walker) value(v any, depth int) {
	w.size++
	switch v := v.(type) {
	case nil:
	case bool, byte, int8:
		w.size++
	case int16, uint16:
		w.size += 2
	case int32, uint32:
		w.size += 4
	case int:
		w.size += 4
		if int64(v) < math.MinInt32 || int64(v) > math.MaxInt32 {
			w.fault(depth, "int %d does not fit the 32 bits it is sent with, use int64", v)
		}
	case int64, time.Time:
		w.size += 8
	case float32:
		w.size += 4
		w.float(float64(v), depth)
	case float64:
		w.size += 8
		w.float(v, depth)
	case amqp.Decimal:
		w.size += 5
	case string:
		w.size += 4 + len(v)
	case []byte:
		w.size += 4 + len(v)
	case []any:
		if w.deeper(depth) {
			w.array(v, depth+1)
		}
	case amqp.Table:
		if w.deeper(depth) {
			w.table(v, depth+1)
		}
	default:
		w.fault(depth, "%T cannot be sent%s", v, instead(v))
	}
}

func (w *walker) float(v float64, depth int) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		w.fault(depth, "%v is no number to the broker", v)
	}
}

// deeper tells whether a container found at depth may be entered.
func (w *walker) deeper(depth int) bool {
	if depth == maxDepth {
		w.fault(depth, "nested deeper than %d levels", maxDepth)
		return false
	}
	return true
}

// fault reports a fault of the value that the path up to depth leads to; -1 is the root.
func (w *walker) fault(depth int, format string, args ...any) {
	if len(w.found) == maxFaults {
		w.more++
		return
	}
	var at strings.Builder
	at.WriteString(w.root)
	for _, s := range w.path[:depth+1] {
		if s.index == named {
			at.WriteString("[" + quote(s.name) + "]")
		} else {
			at.WriteString("[" + strconv.Itoa(s.index) + "]")
		}
	}
	w.found.add(fault(at.String(), format, args...))
}

// result returns the faults found, sorted, since the entries of a map come in a different order each time; then what
// there is to say about the table as a whole.
func (w *walker) result() error {
	slices.SortFunc(w.found, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if w.more > 0 {
		w.found.add(fault(w.root, "%d more faults", w.more))
	}
	if w.size > w.limit {
		w.found.add(fault(w.root, "larger than %d bytes when encoded", w.limit))
	}
	return errors.Join(w.found...)
}

// instead says what to use for a value of a kind that cannot be sent.
func instead(v any) string {
	if _, ok := v.(time.Duration); ok {
		return ", use int64 milliseconds or a string"
	}
	switch reflect.TypeOf(v).Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return ", use int64"
	case reflect.Float32, reflect.Float64:
		return ", use float64"
	case reflect.Bool:
		return ", use bool"
	case reflect.String:
		return ", use string"
	case reflect.Map:
		return ", use amqp.Table"
	case reflect.Slice, reflect.Array:
		return ", use []any"
	default:
		return ""
	}
}

// quote quotes s for an error, cut so that the error stays readable.
func quote(s string) string {
	const enough = 60
	if len(s) > enough {
		return fmt.Sprintf("%q…", s[:enough])
	}
	return strconv.Quote(s)
}
