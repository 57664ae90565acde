package retry

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// foreign returns the headers that are not ours; the same table when there is none of ours.
func foreign(t amqp.Table) amqp.Table {
	if !slices.ContainsFunc(ownHeaders[:], func(name string) bool { _, is := t[name]; return is }) {
		return t
	}
	out := maps.Clone(t)
	for _, name := range ownHeaders {
		delete(out, name)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// with returns a copy of t that has one more header.
func with(t amqp.Table, name string, v any) amqp.Table {
	out := make(amqp.Table, len(t)+1)
	maps.Copy(out, t)
	out[name] = v
	return out
}

func put(t amqp.Table, name, value string) {
	if value != "" {
		t[name] = value
	}
}

// text returns a header that is text in either of its two forms.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

// integer reads a number of any width, or in text.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case string, []byte:
		n, err := strconv.ParseInt(strings.TrimSpace(text(v)), 10, 64)
		return n, err == nil
	}
	return 0, false
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// parseTime returns zero for what is no time.
func parseTime(v any) time.Time {
	if t, ok := v.(time.Time); ok {
		return t
	}
	t, err := time.Parse(time.RFC3339Nano, bounded(text(v), maxShort))
	if err != nil {
		return time.Time{}
	}
	return t
}

// pastTime is parseTime of something that has happened: another clock may be ahead of ours.
func pastTime(v any, now time.Time) time.Time {
	if t := parseTime(v); t.Before(now) {
		return t
	}
	return now
}

// parseExpiration reads the Expiration of a message, milliseconds in digits.
func parseExpiration(s string) (time.Duration, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || s[0] == '+' {
		return 0, false
	}
	return time.Duration(min(n, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond, true
}

// bounded returns at most n bytes of s, valid UTF-8 if s was.
func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
