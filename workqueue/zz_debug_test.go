package workqueue_test

import (
	"fmt"
	"os"
	"runtime/pprof"
	"testing"
	"time"
)

func TestZZDelete(t *testing.T) {
	c := newChaos(t)
	c.publish()
	t.Cleanup(func() {
		if t.Failed() {
			dump(c)
		}
	})
	for range 30 {
		c.deleteQueue()
		began := time.Now()
		ok := false
		for time.Since(began) < 6*time.Second {
			n := c.traffic.count(handled)
			c.wait(200 * time.Millisecond)
			if c.traffic.count(handled) > n+20 && c.broker.Queue(t, c.queue.Name).Consumers == 16 {
				ok = true
				break
			}
		}
		if !ok {
			t.FailNow()
		}
	}
}

func dump(c *chaos) {
	t := c.t
	fmt.Printf("stuck: %+v\n", c.broker.Queue(t, c.queue.Name))
	for _, n := range c.names {
		for _, ch := range c.broker.Channels(t, n) {
			fmt.Printf("%+v\n", ch)
		}
	}
	fmt.Println("handled", c.traffic.count(handled), "confirmed", c.traffic.count(confirmed))
	for _, conn := range c.conns {
		for _, s := range conn.State() {
			fmt.Printf("%+v\n", s)
		}
	}
	var out any
	c.broker.Eval(t, &out, `
F = fun(P) -> list_to_binary(io_lib:format("~p ~p ~p", [P, erlang:process_info(P, message_queue_len), erlang:process_info(P, current_stacktrace)])) end,
[F(P) || P <- rabbit_networking:connections()] ++ [F(P) || P <- rabbit_channel:list()].`)
	for _, l := range out.([]any) {
		fmt.Println(l)
	}
	time.Sleep(2 * time.Second)
	fmt.Println("handled", c.traffic.count(handled), "confirmed", c.traffic.count(confirmed))
	for _, conn := range c.conns {
		for _, s := range conn.State() {
			fmt.Printf("%+v\n", s)
		}
	}
	_ = pprof.Lookup("goroutine").WriteTo(os.Stdout, 2)
}
