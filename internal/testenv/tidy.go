package testenv

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// Tidy looks at the broker's own list until the test ends, and fails it when a queue or an exchange whose name begins with
// prefix is ever transient and shared, which RabbitMQ gives up, or is left behind, or when there never was one.
func (b *Broker) Tidy(tb testing.TB, prefix string) {
	tb.Helper()
	source := strings.NewReplacer("$prefix", provide.Binary(prefix), "$vhost", provide.Binary(b.vhost(tb))).Replace(tidyList)
	b.Eval(tb, nil, source) // where there is no answer, say so now
	ctx, cancel := context.WithCancel(context.Background())
	seen := map[string]string{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			var now map[string]string
			if err := b.server.Eval(ctx, source, &now); err == nil { // no answer while the test restarts it
				maps.Copy(seen, now)
			}
			select {
			case <-ctx.Done():
			case <-time.After(tidyEvery):
			}
		}
	})
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
		var left map[string]string
		b.Eval(tb, &left, source)
		maps.Copy(seen, left)
		if len(seen) == 0 {
			tb.Errorf("no queue or exchange %q... was ever there", prefix)
		}
		for name, kind := range seen {
			if kind != "lasting" {
				tb.Errorf("%s is %s", name, kind)
			}
		}
		for name := range left {
			tb.Errorf("%s is left behind", name)
		}
	})
}

// tidyEvery is the pause between two looks: shorter than anything declared lives.
const tidyEvery = 50 * time.Millisecond

const tidyList = `
Begins = fun(Name) -> binary:longest_common_prefix([$prefix, Name]) =:= byte_size($prefix) end,
Kind = fun(true) -> lasting; (false) -> 'transient and shared' end,
Queues = [{Name, Kind(amqqueue:is_durable(Q) orelse amqqueue:get_exclusive_owner(Q) =/= none)}
          || Q <- rabbit_amqqueue:list($vhost), {resource, _, queue, Name} <- [amqqueue:get_name(Q)], Begins(Name)],
Exchanges = [{Name, Kind(Durable)}
             || X <- rabbit_exchange:list($vhost), {resource, _, exchange, Name} <- [proplists:get_value(name, rabbit_exchange:info(X))],
                Durable <- [proplists:get_value(durable, rabbit_exchange:info(X))], Begins(Name)],
maps:from_list(Queues ++ Exchanges).`
