// Package rpc is request and reply: a call waits for the answer of one of the servers of a queue, until its deadline, and
// ends with the answer to its own request or with an error that says what became of it.
//
//	Client ──request──> [ name ] ──> Server (1..n handlers)
//	Client ──────┘         └───────> Server
//	   ^                                │
//	   └──reply── amq.rabbitmq.reply-to <┘
//
// A minimal program:
//
//	conn, err := reconnect.Dial(ctx, url, reconnect.Config{})
//	server, err := rpc.NewServer(conn, "pricing", rpc.JSON(price), rpc.ServerConfig{Concurrency: 8})
//	err = server.Run(ctx)
//
// and, there or elsewhere:
//
//	client, err := rpc.NewClient(conn, rpc.ClientConfig{})
//	p, err := rpc.Call[Price](ctx, client, "pricing", Quote{SKU: "A7"})
//
// # Guarantees
//
// A call is executed at most once, unless its client is Idempotent or its server says that it is: then a request is sent, or
// handled, again after a loss, with the same MessageId. A call without an answer is an error, at the latest at its
// deadline, and reconnect.ErrUnknown in it tells that it may have been executed all the same. Answers that nobody waits for
// any more, second ones, and what somebody else sends are dropped and counted (Client.Dropped).
//
// No handler starts later than its caller's deadline, but for its request's way to the queue, for what their clocks are apart, and
// for its own wait in a prefetch: the broker hands out no request whose time, counted from its arrival there, is over, and the
// server drops those that have waited here for too long (Server.Expired).
// The handler's context has what is left of the time, never more than ServerConfig.MaxDeadline.
//
// A request that was given to a server which then died is not executed by another one, since the first may have: its caller is told
// reconnect.ErrUnknown, at once. Requests that a stopping server has not started go to others unnoticed, or
// are reconnect.ErrRefused where the queue is full.
//
// Cancelling a call's context ends the call at once; its handler's context only with ClientConfig.NotifyCancel, or at the deadline.
//
// # Topology
//
// Requests wait in a durable classic queue whose TTL is MaxDeadline; with MaxLength more than that are refused. It is
// declared by its servers, with the exchange and bindings if there is an Exchange. Clients declare nothing, and get their answers
// without a queue (direct reply-to). Requests are transient unless Persistent is set.
//
// Rights that a server's user needs: configure (unless Declare is Passive or Skip) and read on the queue, write on
// amq.default for answers; with an Exchange configure and read on it and write on the queue. A client's needs write on
// amq.default, or on its Exchange; with NotifyCancel on both.
//
// # Reconnection
//
// When a client's link or channel is lost, all its pending calls end with reconnect.ErrUnknown at once: their answers could not
// come any more. Calls made meanwhile wait for the next link, as long as their contexts let them. Servers consume again on fresh
// channels; what a handler returns after its channel was lost is sent all the same.
//
// # Errors
//
// See Client.Call. On the server any error of a handler, and a panic, is an answer: a *RemoteError with a code. Run returns nil
// after a shutdown in time, *reconnect.TopologyError when the queue exists with other arguments or may not be used, and
// reconnect.ErrClosed.
//
// An answer goes only to direct reply-to and to queues with the prefixes of ServerConfig.ReplyTo. Requests that name another
// queue, the server's own, none, or an address that no broker gave out are acknowledged, counted (Server.Unanswered) and not
// executed.
//
// # Telemetry
//
// A Call is a span, from the request to the answer, and its trace goes on in the handler's context (docs/telemetry.md).
//
// # Concurrency
//
// Everything is safe for concurrent use. Any number of calls share two channels of the Conn's publishing link; a call costs
// no goroutine. A Server with Concurrency n holds n channels of the consuming link and runs at most n handlers.
package rpc
