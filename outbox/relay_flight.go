package outbox

import "sync"

// inFlight holds the ids of a lane's rows that were fetched and are not settled: what a fetch by state leaves out. An id
// leaves it only after the transaction that deleted its row, or noted its failure, has committed; so a fetch that begins
// later sees that too. It is safe for concurrent use.
type inFlight struct {
	mu  sync.Mutex
	ids map[int64]struct{}
}

func newInFlight() *inFlight { return &inFlight{ids: map[int64]struct{}{}} }

func (f *inFlight) add(ids ...int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.ids[id] = struct{}{}
	}
}

func (f *inFlight) remove(ids ...int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		delete(f.ids, id)
	}
}

// all returns the ids, in no order; never nil, which SQL would take for NULL.
func (f *inFlight) all() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := make([]int64, 0, len(f.ids))
	for id := range f.ids {
		ids = append(ids, id)
	}
	return ids
}

func (f *inFlight) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ids)
}

// reset makes ids all that is in flight.
func (f *inFlight) reset(ids []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.ids)
	for _, id := range ids {
		f.ids[id] = struct{}{}
	}
}
