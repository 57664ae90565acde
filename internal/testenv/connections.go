package testenv

import "testing"

// ConnInfo is a connection as the broker sees it.
type ConnInfo struct {
	Name       string `json:"connection_name"` // of the client properties
	State      string `json:"state"`           // running, blocking, blocked, ...
	User       string `json:"user"`
	Channels   int    `json:"channels"`
	ChannelMax int    `json:"channel_max"`
	FrameMax   int    `json:"frame_max"`
	Heartbeat  int    `json:"timeout"` // seconds, as negotiated
	PeerPort   int    `json:"peer_port"`
	// Certificate is the subject of the client's, "" when it showed none or without TLS.
	Certificate string            `json:"peer_cert_subject"`
	Properties  map[string]string `json:"client_properties"` // those that are strings
}

// ChannelInfo is a channel as the broker sees it.
type ChannelInfo struct {
	Connection  string `json:"connection_name"`
	Number      int    `json:"number"`
	Prefetch    int    `json:"prefetch_count"`
	Consumers   int    `json:"consumer_count"`
	Unacked     int    `json:"messages_unacknowledged"`
	Unconfirmed int    `json:"messages_unconfirmed"`
	Confirm     bool   `json:"confirm"`
}

// found begins every expression about connections: Found holds {reader process, connection_name} of the connections
// whose connection_name begins with $prefix. One that ends meanwhile is no longer there to be asked. Connections and channels
// enter the lists by a message to a process of each node, pg_local, which may have many to handle: the lists are complete
// once it has answered.
const found = `
Prefix = $prefix,
_ = rpc:multicall(pg_local, sync, [], 5000),
Strings = fun(Table) -> maps:from_list([{K, V} || {K, longstr, V} <- Table]) end,
Ask = fun(Pid, Items) -> try rabbit_networking:connection_info(Pid, Items) catch _:_ -> [] end end,
Matches = fun(Name) -> binary:longest_common_prefix([Prefix, Name]) =:= byte_size(Prefix) end,
Found = [{Pid, Name} || Pid <- rabbit_networking:connections(),
                        {client_properties, Table} <- Ask(Pid, [client_properties]), is_list(Table),
                        Name <- [maps:get(<<"connection_name">>, Strings(Table), <<>>)], Matches(Name)],
`

// channelsOf follows found: Channels holds the processes of all channels of the found connections.
const channelsOf = `
Of = maps:from_list(Found),
Info = fun(Pid, Items) -> try rabbit_channel:info(Pid, Items) catch _:_ -> [] end end,
Channels = [{Pid, maps:get(Connection, Of)} || Pid <- rabbit_channel:list(),
                                               {connection, Connection} <- Info(Pid, [connection]),
                                               maps:is_key(Connection, Of)],
`

// Connections returns the connections whose connection_name begins with namePrefix, as they are now.
func (b *Broker) Connections(tb testing.TB, namePrefix string) []ConnInfo {
	tb.Helper()
	var conns []ConnInfo
	b.evalWith(tb, &conns, found+`
Items = [state, user, channels, channel_max, frame_max, timeout, peer_port, peer_cert_subject, client_properties],
[maps:put(client_properties, Strings(maps:get(client_properties, Map)), Map#{connection_name => Name})
 || {Pid, Name} <- Found, [_ | _] = List <- [Ask(Pid, Items)], Map <- [maps:from_list(List)]].`,
		map[string]string{"prefix": namePrefix})
	return conns
}

// Channels returns the channels of the connections whose connection_name begins with namePrefix, as they are now.
func (b *Broker) Channels(tb testing.TB, namePrefix string) []ChannelInfo {
	tb.Helper()
	var channels []ChannelInfo
	b.evalWith(tb, &channels, found+channelsOf+`
Items = [number, prefetch_count, consumer_count, messages_unacknowledged, messages_unconfirmed, confirm],
[(maps:from_list(List))#{connection_name => Name} || {Pid, Name} <- Channels, [_ | _] = List <- [Info(Pid, Items)]].`,
		map[string]string{"prefix": namePrefix})
	return channels
}

// CutConnections has the broker close, with 320 CONNECTION_FORCED, all connections whose connection_name begins with
// namePrefix. It returns how many; they are gone soon after.
func (b *Broker) CutConnections(tb testing.TB, namePrefix string) int {
	tb.Helper()
	var n int
	b.evalWith(tb, &n, found+`
Cut = fun(Pid) -> try rabbit_networking:close_connection(Pid, "cut by the test"), 1 catch _:_ -> 0 end end,
lists:sum([Cut(Pid) || {Pid, _} <- Found]).`, map[string]string{"prefix": namePrefix})
	return n
}

// CloseChannels has the broker close, with 406 PRECONDITION_FAILED, all channels of the connections whose
// connection_name begins with namePrefix; the connections stay. It returns how many channels, once they have ended: nothing
// is delivered to them any more. They are closed as for a client's own mistake: the broker is made to see an ack of a
// delivery that never was.
func (b *Broker) CloseChannels(tb testing.TB, namePrefix string) int {
	tb.Helper()
	var n int
	b.evalWith(tb, &n, found+channelsOf+`
Refs = [begin rabbit_channel:do(Pid, {'basic.ack', 16#7fffffffffffffff, false}), monitor(process, Pid) end || {Pid, _} <- Channels],
[receive {'DOWN', Ref, _, _, _} -> ok after 5000 -> ok end || Ref <- Refs],
length(Channels).`, map[string]string{"prefix": namePrefix})
	return n
}
