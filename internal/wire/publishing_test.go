package wire

import (
	"fmt"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// aReply looks like a direct reply-to address.
const aReply = "amq.rabbitmq.reply-to.g1h2.x"

func TestPublishing(t *testing.T) {
	for name, tt := range map[string]struct {
		exchange, key string
		msg           amqp.Publishing
		lim           Limits
		faults        []string
	}{
		"empty":                  {},
		"all properties":         {exchange: x(255), key: x(255), msg: full(255)},
		"bytes that are no text": {key: "\xff\x00", msg: amqp.Publishing{MessageId: "\xff\x00", Type: "\xff", Headers: amqp.Table{"\xff": "\xff"}}},
		"times": {msg: amqp.Publishing{Timestamp: time.Unix(-1, 0),
			Headers: amqp.Table{"t": time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)}}},

		"exchange":           {exchange: x(256), faults: []string{"Exchange: 256 bytes, at most 255"}},
		"exchange not UTF-8": {exchange: "a\xff", faults: []string{`Exchange: "a\xff" is not valid UTF-8`}},
		"key":                {key: x(256), faults: []string{"Key: 256 bytes, at most 255"}},
		"all properties too long": {msg: long(), faults: []string{
			"Expiration: " + fmt.Sprintf(`"%s"… is not a number of milliseconds, digits only`, x(60)),
			"ContentType: 256 bytes, at most 255",
			"ContentEncoding: 256 bytes, at most 255",
			"CorrelationId: 256 bytes, at most 255",
			"ReplyTo: 256 bytes, at most 255",
			"Expiration: 256 bytes, at most 255",
			"MessageId: 256 bytes, at most 255",
			"Type: 256 bytes, at most 255",
			"UserId: 256 bytes, at most 255",
			"AppId: 256 bytes, at most 255",
		}},

		"body at the default limit":    {msg: amqp.Publishing{Body: make([]byte, 16<<20)}},
		"body above the default limit": {msg: amqp.Publishing{Body: make([]byte, 16<<20+1)}, faults: []string{"Body: 16777217 bytes, at most 16777216"}},
		"body at the limit":            {msg: amqp.Publishing{Body: make([]byte, 10)}, lim: Limits{MaxBody: 10}},
		"body above the limit":         {msg: amqp.Publishing{Body: make([]byte, 11)}, lim: Limits{MaxBody: 10}, faults: []string{"Body: 11 bytes, at most 10"}},
		"body without limit":           {msg: amqp.Publishing{Body: make([]byte, 16<<20+1)}, lim: Limits{MaxBody: -1}},

		"user of the link":      {msg: amqp.Publishing{UserId: "me"}, lim: Limits{User: "me"}},
		"user unknown":          {msg: amqp.Publishing{UserId: "me"}},
		"no user":               {lim: Limits{User: "me"}},
		"another user":          {msg: amqp.Publishing{UserId: "you"}, lim: Limits{User: "me"}, faults: []string{`UserId: "you", but the link's user is "me"`}},
		"transient":             {msg: amqp.Publishing{DeliveryMode: amqp.Transient}},
		"delivery mode":         {msg: amqp.Publishing{DeliveryMode: 3}, faults: []string{"DeliveryMode: 3, must be 0, 1 or 2"}},
		"priority":              {msg: amqp.Publishing{Priority: 255}},
		"direct reply":          {msg: amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to"}, lim: Limits{DirectReply: true}},
		"no direct reply":       {msg: amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to"}, faults: []string{"ReplyTo: amq.rabbitmq.reply-to needs a consumer on the same channel, which this one has not"}},
		"a reply":               {key: aReply},
		"no request to a reply": {key: aReply, lim: Limits{NoReplies: true}, faults: []string{`Key: "amq.rabbitmq.reply-to.g1h2.x" is a direct reply-to address`}},
		"no copy to a reply":    {key: "q", msg: amqp.Publishing{Headers: amqp.Table{"BCC": []any{"r", aReply}}}, lim: Limits{NoReplies: true}, faults: []string{`Headers["BCC"]: "amq.rabbitmq.reply-to.g1h2.x" is a direct reply-to address`}},
		"such a key elsewhere":  {exchange: "x", key: aReply, lim: Limits{NoReplies: true}},
		"another's reply":       {msg: amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to.g1h2"}},
		"CC":                    {msg: headersOf("CC", []any{"a", x(255)})},
		"BCC":                   {msg: headersOf("BCC", []any{})},
		"CC string":             {msg: headersOf("CC", "a"), faults: []string{`Headers["CC"]: string, must be []any of routing keys`}},
		"BCC nil":               {msg: headersOf("BCC", nil), faults: []string{`Headers["BCC"]: <nil>, must be []any of routing keys`}},
		"CC of numbers":         {msg: headersOf("CC", []any{"a", 1}), faults: []string{`Headers["CC"]: routing key 1: int, must be a string`}},
		"CC too long":           {msg: headersOf("CC", []any{x(256)}), faults: []string{`Headers["CC"]: routing key 0: 256 bytes, at most 255`}},
		"cc is any header":      {msg: headersOf("cc", "a")},
		"header":                {msg: headersOf("a", []any{math.Inf(1)}), faults: []string{`Headers["a"][0]: +Inf is no number to the broker`}},
		"headers fill 64 KiB":   {msg: headersOf("a", x(64<<10-14-4-2-5))},
		"headers too large":     {msg: headersOf("a", x(64<<10-14-4-2-4)), faults: []string{"Headers: larger than 65522 bytes when encoded"}},
		"headers and properties too large": {msg: amqp.Publishing{MessageId: "0123456789", Headers: amqp.Table{"a": x(64<<10 - 14 - 4 - 2 - 5)}},
			faults: []string{"Headers: larger than 65511 bytes when encoded"}},
		"headers fill a small frame":            {msg: headersOf("a", x(8192-8-14-4-2-5)), lim: Limits{FrameMax: 8192}},
		"headers too large for a small frame":   {msg: headersOf("a", x(8192-8-14-4-2-4)), lim: Limits{FrameMax: 8192}, faults: []string{"Headers: larger than 8170 bytes when encoded"}},
		"headers too large, frame large enough": {msg: headersOf("a", x(65<<10)), lim: Limits{FrameMax: 1 << 20}, faults: []string{"Headers: larger than 65522 bytes when encoded"}},
		"everything at once": {exchange: x(256), key: x(256), msg: amqp.Publishing{MessageId: x(300), Expiration: "1s", Headers: amqp.Table{"a": uint(1)}, Body: make([]byte, 2)},
			lim: Limits{MaxBody: 1}, faults: []string{
				"Exchange: 256 bytes, at most 255",
				"Key: 256 bytes, at most 255",
				"Body: 2 bytes, at most 1",
				`Expiration: "1s" is not a number of milliseconds, digits only`,
				"MessageId: 300 bytes, at most 255",
				`Headers["a"]: uint cannot be sent, use int64`,
			}},
	} {
		t.Run(name, func(t *testing.T) {
			requireFaults(t, Publishing(tt.exchange, tt.key, &tt.msg, tt.lim), tt.faults...)
		})
	}
}

// full returns a message with properties of n bytes each.
func full(n int) amqp.Publishing {
	return amqp.Publishing{
		ContentType: x(n), ContentEncoding: x(n), CorrelationId: x(n), ReplyTo: x(n), MessageId: x(n), Type: x(n),
		UserId: x(n), AppId: x(n), Expiration: "1", Timestamp: time.Now(), DeliveryMode: 2, Priority: 1,
	}
}

func long() amqp.Publishing {
	msg := full(256)
	msg.Expiration = x(256)
	return msg
}

func headersOf(name string, v any) amqp.Publishing {
	return amqp.Publishing{Headers: amqp.Table{name: v}}
}

func TestExpiration(t *testing.T) {
	for _, s := range []string{"", "0", "5000", "0005000", "4294967296", "315360000000", "00000000000000000000315360000000"} {
		require.NoError(t, expiration(s), s)
	}
	for _, s := range []string{"-1", "+5", "-0", " 5", "5 ", "1.5", "abc", "1e3", "5s", "0x10", "٣", "315360000001", "99999999999999999999", "9223372036854775808"} {
		require.Error(t, expiration(s), s)
	}
}
