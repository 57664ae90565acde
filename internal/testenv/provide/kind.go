package provide

import (
	"cmp"
	"errors"
	"fmt"
	"os"
)

// Kind is a way to come by a broker and a database.
type Kind string

// The kinds, in the order in which they are tried when none is asked for.
const (
	URL       Kind = "url"       // AMQP_URL, DATABASE_URL
	Container Kind = "container" // a Docker engine
	Local     Kind = "local"     // the machine's own binaries
)

// ErrNone is returned when no kind gives what is asked for.
var ErrNone = errors.New("none to be had")

// ErrNoPooler is returned when this machine has no PgBouncer.
var ErrNoPooler = errors.New("no PgBouncer on this machine")

// chosen returns the kind asked for, else that of WARREN_BROKER, else "".
func chosen(asked Kind) (Kind, error) {
	switch kind := cmp.Or(asked, Kind(os.Getenv("WARREN_BROKER"))); kind {
	case "", URL, Container, Local:
		return kind, nil
	default:
		return "", fmt.Errorf("WARREN_BROKER=%q: want url, container or local", kind)
	}
}

// toTry returns the kinds to try for a server whose address the variable may hold. An address that is set is meant: where
// nothing answers there, that is an error and no reason to start another server.
func (k Kind) toTry(variable string) []Kind {
	switch {
	case k != "":
		return []Kind{k}
	case os.Getenv(variable) != "":
		return []Kind{URL}
	}
	return []Kind{Container, Local}
}

// first returns what the first kind gives that gives something; the error tells why each did not.
func first[T any](kinds []Kind, start func(Kind) (T, error)) (T, error) {
	var errs []error
	for _, kind := range kinds {
		got, err := start(kind)
		if err == nil {
			return got, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", kind, err))
	}
	var none T
	return none, fmt.Errorf("%w: %w", ErrNone, errors.Join(errs...))
}
