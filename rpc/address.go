package rpc

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// isDirectReply reports whether to is the address of a channel with a reply consumer: behind the prefix the process of the
// channel, as Erlang writes it, in base64, a dot and a key.
//
// Whoever may send a request may forge one, and up to RabbitMQ 4.1 the broker answers a publish to an address that it cannot
// take apart with 541, which ends the connection with all that others are doing on it. So only what it can take apart goes
// there. The node is not the channel's own name but "reply@" and a hash of it, from 3.10 to 4.3.
func isDirectReply(to string) bool {
	encoded, key, found := strings.Cut(strings.TrimPrefix(to, directReplyPrefix), ".")
	if !strings.HasPrefix(to, directReplyPrefix) || !found || key == "" {
		return false
	}
	var buffer [192]byte // of at most 255 bytes of base64
	n, err := base64.StdEncoding.Strict().Decode(buffer[:], []byte(encoded))
	if err != nil {
		return false
	}
	return isProcess(buffer[:n])
}

// Tags of Erlang's external term format.
const (
	termVersion   = 131
	termProcess   = 88
	termAtom      = 118 // with two bytes of length
	termShortAtom = 119 // with one
	processRest   = 12  // id, serial and creation behind the node
)

func isProcess(b []byte) bool {
	if len(b) < 5 || b[0] != termVersion || b[1] != termProcess {
		return false
	}
	kind, length, rest := b[2], int(b[3]), b[4:]
	switch kind {
	case termAtom:
		length, rest = int(binary.BigEndian.Uint16(b[3:])), b[5:]
	case termShortAtom:
	default:
		return false
	}
	return len(rest) == length+processRest && isReplyNode(string(rest[:length]))
}

func isReplyNode(name string) bool {
	hash, found := strings.CutPrefix(name, "reply@")
	if !found || hash == "" || len(hash) > len("4294967295") {
		return false
	}
	for i := range len(hash) {
		if hash[i] < '0' || hash[i] > '9' {
			return false
		}
	}
	return true
}
