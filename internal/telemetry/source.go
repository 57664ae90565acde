package telemetry

import (
	"reflect"
	"sync/atomic"
)

// source knows whether a provider, or a propagator, is there: one was given, or set as OpenTelemetry's global one by now. The
// global ones may be set after a Conn was made: what was taken from their placeholders before then goes on to the real
// ones, but until then costs as much as if it did something.
type source struct {
	name   string       // for the log
	said   atomic.Int64 // when its panics were last spoken of, in nanoseconds; 0: never
	there  atomic.Bool
	global func() any // returns the global one; nil when one was given
}

func (s *source) on() bool {
	if s.there.Load() {
		return true
	}
	if s.global == nil || isPlaceholder(s.global()) {
		return false
	}
	s.there.Store(true)
	return true
}

// isPlaceholder tells whether v is what OpenTelemetry hands out as global before anything was set. Nothing in its API says so; if
// that package moves, an unset provider costs a little, which a test notices.
func isPlaceholder(v any) bool {
	t := reflect.TypeOf(v)
	return t != nil && t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global"
}
