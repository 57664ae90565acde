package rpc

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"strings"
)

// address is a direct reply-to address, taken apart. Behind the prefix stands the process of the channel, as Erlang writes it,
// in base64, a dot and a key.
type address struct {
	class
	creation uint32
}

// class is what the broker's ability to take an address apart depends on.
type class struct {
	node       string // "reply@" and a hash of the node's name, from RabbitMQ 3.10 to 4.3
	id, serial uint8  // how many bits the numbers of the process have, not counting those that every Erlang takes
}

// Every Erlang takes process numbers of so many bits. The one under RabbitMQ 3.10 takes no others.
const idBits, serialBits = 15, 13

func classOf(node string, id, serial uint32) class {
	c := class{node: node}
	if n := bits.Len32(id); n > idBits {
		c.id = uint8(n)
	}
	if n := bits.Len32(serial); n > serialBits {
		c.serial = uint8(n)
	}
	return c
}

// addressOf takes an address apart; ok is false when it is no direct reply-to address.
//
// Whoever may send a request may forge one, and up to RabbitMQ 4.1 the broker answers a publish to an address that it cannot
// take apart with 541, which ends the connection with all that others are doing on it. So only what it can take apart goes
// there, and see nodes.
func addressOf(to string) (a address, ok bool) {
	rest, direct := strings.CutPrefix(to, directReplyPrefix)
	process, key, found := strings.Cut(rest, ".")
	if !direct || !found || key == "" {
		return a, false
	}
	var buffer [192]byte // of at most 255 bytes of base64
	n, err := base64.StdEncoding.Strict().Decode(buffer[:], []byte(process))
	if err != nil {
		return a, false
	}
	return parseProcess(buffer[:n])
}

// Tags of Erlang's external term format.
const (
	termVersion   = 131
	termProcess   = 88
	termAtom      = 118 // with two bytes of length
	termShortAtom = 119 // with one
	processRest   = 12  // id, serial and creation behind the node
)

func parseProcess(b []byte) (a address, ok bool) {
	if len(b) < 5 || b[0] != termVersion || b[1] != termProcess {
		return a, false
	}
	kind, length, rest := b[2], int(b[3]), b[4:]
	switch kind {
	case termAtom:
		length, rest = int(binary.BigEndian.Uint16(b[3:])), b[5:]
	case termShortAtom:
	default:
		return a, false
	}
	if len(rest) != length+processRest || !isReplyNode(rest[:length]) {
		return a, false
	}
	numbers := rest[length:]
	id, serial := binary.BigEndian.Uint32(numbers), binary.BigEndian.Uint32(numbers[4:])
	return address{classOf(string(rest[:length]), id, serial), binary.BigEndian.Uint32(numbers[8:])}, true
}

// extreme is the most demanding address of a's class. Its key is no channel's.
func (a address) extreme() string {
	term := []byte{termVersion, termProcess, termAtom}
	term = binary.BigEndian.AppendUint16(term, uint16(len(a.node)))
	term = append(term, a.node...)
	term = binary.BigEndian.AppendUint32(term, 1<<max(idBits, a.id)-1)
	term = binary.BigEndian.AppendUint32(term, 1<<max(serialBits, a.serial)-1)
	term = binary.BigEndian.AppendUint32(term, a.creation)
	return directReplyPrefix + base64.StdEncoding.EncodeToString(term) + ".none"
}

func isReplyNode(name []byte) bool {
	hash, found := bytes.CutPrefix(name, []byte("reply@"))
	if !found || len(hash) == 0 || len(hash) > len("4294967295") {
		return false
	}
	for _, c := range hash {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
