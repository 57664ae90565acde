package reconnect

import (
	"regexp"
	"strings"
)

// accessRefused finds what may not be used in the broker's words, which it cuts off at 255 bytes; which right is missing it
// says from RabbitMQ 4.0 on.
var accessRefused = regexp.MustCompile(`(?:(configure|write|read) )?access to (exchange|queue) '([^']*)`)

// deadLetterExchange is the argument with which declaring a queue needs the rights to read it and to write to the exchange.
const deadLetterExchange = "x-dead-letter-exchange"

// missingRight returns the right for the lack of which the item was refused, such as "write on exchange 'events'", or "" when
// the broker's reason tells of none. Where an older broker leaves open which of two it is, it names both.
func (it item) missingRight(reason string) string {
	m := accessRefused.FindStringSubmatch(reason)
	if m == nil {
		return ""
	}
	right, kind, name := m[1], m[2], m[3]
	if right == "" {
		right = it.needs(kind, name)
	}
	return right + " on " + kind + " '" + name + "'"
}

// needs returns the right that declaring the item needs on something (F12).
func (it item) needs(kind, name string) string {
	switch {
	case it.binding != nil && kind == "exchange" && isCalled(it.binding.Exchange, name):
		return "read"
	case it.binding != nil:
		return "write"
	case it.queue != nil && kind == "exchange", it.exchange != nil && !isCalled(it.exchange.Name, name):
		return "write" // to what takes dead letters, or what nobody wants
	case it.queue != nil && it.queue.Arguments[deadLetterExchange] != nil, it.exchange != nil && it.exchange.Alternate != "":
		return "configure or read"
	}
	return "configure"
}

// isCalled reports whether a reason, in which long names are cut off, speaks of something by its name.
func isCalled(name, said string) bool {
	const cut = 100
	return name == said || len(said) >= cut && strings.HasPrefix(name, said)
}
