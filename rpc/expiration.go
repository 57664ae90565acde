package rpc

import (
	"strconv"
	"sync/atomic"
	"time"
)

// maxExpiration keeps the number of milliseconds within what every broker takes; the request queue has a limit of its own.
const maxExpiration = 24 * time.Hour

// milliseconds is what is left of a call's time in whole milliseconds, rounded up: a fraction would be refused, and 0 means
// that a server has to be waiting at this very moment.
func milliseconds(left time.Duration) int64 {
	left = min(left, maxExpiration)
	return int64((left + time.Millisecond - 1) / time.Millisecond)
}

func expiration(left time.Duration) string { return strconv.FormatInt(milliseconds(left), 10) }

// expirations remembers the last text: most calls of a program have the same time.
type expirations struct{ last atomic.Pointer[expires] }

type expires struct {
	ms   int64
	text string
}

func (e *expirations) of(left time.Duration) string {
	ms := milliseconds(left)
	if last := e.last.Load(); last != nil && last.ms == ms {
		return last.text
	}
	x := &expires{ms, strconv.FormatInt(ms, 10)}
	e.last.Store(x)
	return x.text
}
