// Package coalesce provides the net.Conn that stands between amqp091-go and its socket. It does two things the driver
// does not: it gathers small writes, and it never lets a dead peer go unnoticed.
//
// The driver makes one system call per message, under a lock that every publish, ack and heartbeat of the connection
// needs; when the socket is full, all of them stand still, whatever their contexts say. Here Write only appends to a
// buffer, and one goroutine, the flusher, writes what has gathered meanwhile:
//
//	callers -> driver -> Write -> [gathered] -> flusher -> socket (TCP, or TLS over it)
//
// # Guarantees
//
//   - Bytes leave in the order of the Write calls, each exactly once, and none is held back on a timer.
//   - Write never blocks. [Conn.WaitRoom] is where a caller waits, by its context, until the buffer has room.
//   - After [Conn.SetHeartbeat] a peer that has gone silent, or that takes no bytes, is noticed within three heartbeats,
//     also when it froze before the first frame after the handshake; one that sends something at least once a heartbeat
//     is never cut.
//   - While the broker blocks the connection ([Conn.SetBlocked]) it stops reading but still sends heartbeats: then only
//     the limit on writing is suspended.
//   - A write error is final: WaitRoom reports it from then on, and Read ends at the latest a second later, after what the
//     peer had still said.
//
// Write reports no error at all, and what it took may be lost with the connection. What was published is known by its
// confirm alone.
//
// # Concurrency
//
// All methods are safe for concurrent use, except that only one goroutine may call Read. New starts the flusher; Close
// waits for its end, Kill makes it end.
package coalesce
