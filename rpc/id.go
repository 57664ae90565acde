package rpc

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"
)

// ids makes the ids of calls: UUIDv7 with 74 random bits from crypto/rand. Whoever answers a call knows the client's
// address; so that it cannot answer others, their ids must not follow from the one it has seen. The random bytes are
// fetched in bulk.
type ids struct {
	mu   sync.Mutex
	pool [1024]byte
	left int
}

// randomPart is where in an id that begins which is not the time: a correlation id of its own, and without it all properties of
// a request fit one buffer less.
const randomPart = len("01890000-0000-")

func (s *ids) next(now time.Time) string {
	var id uuid.UUID
	s.mu.Lock()
	if s.left < len(id) {
		rand.Read(s.pool[:]) // never fails
		s.left = len(s.pool)
	}
	copy(id[:], s.pool[s.left-len(id):s.left])
	s.left -= len(id)
	s.mu.Unlock()
	random := uint64(id[6])<<8 | uint64(id[7])
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16|7<<12|random&0xfff)
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}
