// Package exchange is what pubsub and the routing packages share: a publisher to one exchange, and subscriptions to it,
// durable ones of a group and live ones of a single instance. Those packages write out their own types, so that their
// documentation stands alone, and hand them down to this one.
//
// It stands between them and package reconnect, above the rest of what is internal.
//
// # Live subscriptions
//
// A live subscription's queue is exclusive, and has a fresh name on each connection: an old one can be locked for as long
// as the broker takes the old connection for alive. It is declared by hand on the subscriber's own channel, and not through
// the Conn's topology, which would remember it and declare it again (live.go). Which connection a channel belongs to, the
// supervisor says in the context (report.Connection): on the same one the queue is still there, with all it has gathered, and is
// only consumed again.
//
// A gap is reported from the last moment at which the queue is known to have been bound, which is when the last look at it
// that was answered was asked for, to the moment at which the bindings of the new one are confirmed: rather too long than
// too short, by up to the pause between two looks.
package exchange
