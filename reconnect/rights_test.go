package reconnect

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Older brokers say only what may not be used; which right is missing follows from what was declared.
func TestMissingRight(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 250)
	queue := item{queue: &Queue{Name: "q"}}
	withDead := item{queue: &Queue{Name: "q", Arguments: amqp.Table{deadLetterExchange: ""}}}
	exchange := item{exchange: &Exchange{Name: "e"}}
	alternate := item{exchange: &Exchange{Name: "e", Alternate: "a"}}
	binding := item{binding: &Binding{Exchange: "e", Queue: "q"}}
	between := item{binding: &Binding{Exchange: "e", ToExchange: "f"}}
	for _, tc := range []struct {
		it           item
		reason, want string
	}{
		{queue, "access to queue 'q' in vhost '/' refused for user 'u'", "configure on queue 'q'"},
		{withDead, "access to queue 'q' in vhost '/' refused for user 'u'", "configure or read on queue 'q'"},
		{withDead, "read access to queue 'q' in vhost '/' refused for user 'u'", "read on queue 'q'"},
		{withDead, "access to exchange 'amq.default' in vhost '/' refused for user 'u'", "write on exchange 'amq.default'"},
		{exchange, "access to exchange 'e' in vhost '/' refused for user 'u'", "configure on exchange 'e'"},
		{alternate, "access to exchange 'e' in vhost '/' refused for user 'u'", "configure or read on exchange 'e'"},
		{alternate, "access to exchange 'a' in vhost '/' refused for user 'u'", "write on exchange 'a'"},
		{binding, "access to exchange 'e' in vhost '/' refused for user 'u'", "read on exchange 'e'"},
		{binding, "access to queue 'q' in vhost '/' refused for user 'u'", "write on queue 'q'"},
		{between, "access to exchange 'f' in vhost '/' refused for user 'u'", "write on exchange 'f'"},
		{item{queue: &Queue{Name: long}}, "access to queue '" + long[:200], "configure on queue '" + long[:200] + "'"},
		{item{exchange: &Exchange{Name: long}}, "access to exchange '" + long[:200], "configure on exchange '" + long[:200] + "'"},
		{queue, "something else", ""},
	} {
		require.Equal(t, tc.want, tc.it.missingRight("ACCESS_REFUSED - "+tc.reason), tc.reason)
	}
}
