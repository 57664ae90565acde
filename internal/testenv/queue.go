package testenv

import (
	"testing"
	"time"
)

// QueueInfo is a queue as the broker sees it. All figures are exact and of the same moment, not the management API's
// samples.
type QueueInfo struct {
	Exists     bool           `json:"exists"`
	NoLeader   bool           `json:"no_leader"` // internal: a quorum queue whose node is just starting
	Type       string         `json:"type"`      // quorum, classic, stream
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Exclusive  bool           `json:"exclusive"`
	Ready      int            `json:"ready"`
	Unacked    int            `json:"unacked"`
	Consumers  int            `json:"consumers"`
	Details    []ConsumerInfo `json:"details"`   // one for each consumer
	Arguments  map[string]any `json:"arguments"` // strings, numbers (float64), booleans; RabbitMQ 4 adds x-queue-type
}

// ConsumerInfo is a consumer of a queue as the broker sees it.
type ConsumerInfo struct {
	Tag      string `json:"tag"`
	Prefetch int    `json:"prefetch"`
	Acks     bool   `json:"acks"`
	Active   bool   `json:"active"` // false: waits, on a queue with a single active consumer
	Status   string `json:"status"`
}

// queueInfo asks the queue's own process, or the leader's state of a quorum queue: what the broker keeps elsewhere is
// up to 5 s old.
const queueInfo = `
Scalars = fun(Table) -> maps:from_list([{K, V} || {K, _, V} <- Table, is_binary(V) orelse is_number(V) orelse is_boolean(V)]) end,
Types = #{rabbit_quorum_queue => quorum, rabbit_classic_queue => classic, rabbit_stream_queue => stream},
Counts = fun(Queue, rabbit_quorum_queue) ->
             Query = fun(S) -> {rabbit_fifo:query_messages_ready(S), rabbit_fifo:query_messages_checked_out(S)} end,
             case ra:leader_query(amqqueue:get_pid(Queue), Query) of
                 {ok, {_, Values}, _} -> Values;
                 _ -> no_leader
             end;
            (Queue, _) ->
             [{_, Ready}, {_, Unacked}] = rabbit_amqqueue:info(Queue, [messages_ready, messages_unacknowledged]),
             {Ready, Unacked}
         end,
Describe = fun(Queue, no_leader) -> #{exists => true, no_leader => true};
              (Queue, {Ready, Unacked}) ->
    Type = amqqueue:get_type(Queue),
    Consumers = [#{tag => Tag, acks => Acks, prefetch => Prefetch, active => Active, status => Status}
                 || {_, Tag, Acks, Prefetch, Active, Status, _, _} <- rabbit_amqqueue:consumers(Queue),
                    is_boolean(Acks)], % not so: what a basic.get holds of a quorum queue, until it is settled
    #{exists => true, type => maps:get(Type, Types, Type), durable => amqqueue:is_durable(Queue),
      auto_delete => amqqueue:is_auto_delete(Queue), exclusive => amqqueue:get_exclusive_owner(Queue) =/= none,
      ready => Ready, unacked => Unacked, consumers => length(Consumers), details => Consumers,
      arguments => Scalars(amqqueue:get_arguments(Queue))}
end,
case rabbit_amqqueue:lookup(rabbit_misc:r($vhost, queue, $name)) of
    {ok, Queue} -> Describe(Queue, Counts(Queue, amqqueue:get_type(Queue)));
    {error, not_found} -> #{exists => false}
end.`

// Queue returns the queue as it is now; Exists is false when there is none. It waits for the leader of a quorum queue
// that is just starting.
func (b *Broker) Queue(tb testing.TB, name string) QueueInfo {
	tb.Helper()
	var info QueueInfo
	Eventually(tb, leaderWithin, func() bool {
		info = QueueInfo{}
		b.evalWith(tb, &info, queueInfo, map[string]string{"vhost": b.vhost(tb), "name": name})
		return !info.NoLeader
	}, "queue %q has a leader", name)
	return info
}

// leaderWithin is how long a quorum queue may take to find its leader after its node has started.
const leaderWithin = 15 * time.Second

// DeleteQueue deletes a queue with all it holds; one that is not there is deleted.
func (b *Broker) DeleteQueue(tb testing.TB, name string) {
	tb.Helper()
	conn := b.DialNamed(tb, "testenv-delete")
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		tb.Fatalf("open a channel: %v", err)
	}
	if _, err := ch.QueueDelete(name, false, false, false); err != nil {
		tb.Fatalf("delete queue %q: %v", name, err)
	}
}
