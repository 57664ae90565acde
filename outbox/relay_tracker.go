package outbox

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxGaps is how many missing ids are looked for one by one. With more of them rows are found by their state until
	// all transactions that may own one have ended.
	maxGaps = 10_000

	// settleTime is how long an id has to be missing before the transactions that run then are taken for all that may own
	// it. Between the drawing of an id and the moment its transaction shows in a snapshot lie microseconds.
	settleTime = time.Second
)

// tracker knows which rows of a lane its leader has seen, without a trace of that in the database. Ids are drawn in order
// but become visible when their transactions commit, so an id below the highest one seen may still come: it is a gap until
// it has come or its transaction is known to have ended otherwise.
//
// What is seen by one fetch is what one snapshot shows. The horizon of snapshots is used only to forget gaps, never to hold
// rows back: a transaction that stays open for hours delays nothing.
//
// A tracker holds for one session with the database: after a failover ids may be drawn again. It belongs to one goroutine.
type tracker struct {
	cursor int64 // the highest id seen; below it only gaps, and what is below an open floor, can still come
	gaps   []gap // ascending
	floor  floor
}

// gap is an id that was skipped. Once stamped, it is forgotten when every transaction before the stamp has ended and it
// still is not there.
type gap struct {
	id    int64
	noted time.Time
	stamp uint64 // zero: not yet
}

// floor is an id up to which gaps are not known one by one. While it is open, rows are found by their state.
type floor struct {
	gap
	open bool
}

// sighting is what one fetch saw, in one snapshot.
type sighting struct {
	ids        []int64 // of the rows it returned, ascending
	full       bool    // it was limited: beyond its last row there may be more
	xmin, xmax uint64  // every transaction before xmin has ended, none from xmax on has begun
}

// recover starts over. Every id up to last may have been drawn by somebody whose transaction goes on.
func (t *tracker) recover(last int64, now time.Time) {
	*t = tracker{}
	t.raise(last, now)
}

// raise opens the floor at id: what is missing below is found by state.
func (t *tracker) raise(id int64, now time.Time) {
	t.cursor = id
	t.gaps = nil
	t.floor = floor{gap: gap{id: id, noted: now}, open: true}
}

// byState reports whether the next fetch has to look for rows by their state instead of by cursor and gaps.
func (t *tracker) byState() bool { return t.floor.open }

// missing returns the ids of the gaps, ascending.
func (t *tracker) missing() []int64 {
	ids := make([]int64, len(t.gaps))
	for i, g := range t.gaps {
		ids[i] = g.id
	}
	return ids
}

// isMissing reports whether id is a gap.
func (t *tracker) isMissing(id int64) bool {
	_, found := slices.BinarySearchFunc(t.gaps, id, func(g gap, id int64) int { return cmp.Compare(g.id, id) })
	return found
}

// observe takes in what a fetch saw. byState says that it looked for rows by their state, below the floor too.
func (t *tracker) observe(s sighting, byState bool, now time.Time) {
	t.fill(s)
	t.forget(s, now)
	if byState {
		t.close(s, now)
	}
	for _, id := range s.ids {
		if id > t.cursor {
			t.advance(id, now)
		}
	}
}

// fill removes the gaps that have come.
func (t *tracker) fill(s sighting) {
	next := 0
	t.gaps = slices.DeleteFunc(t.gaps, func(g gap) bool {
		for next < len(s.ids) && s.ids[next] < g.id {
			next++
		}
		return next < len(s.ids) && s.ids[next] == g.id
	})
}

// forget drops the gaps that cannot come any more. Those beyond the last row of a limited fetch may be there, unseen.
func (t *tracker) forget(s sighting, now time.Time) {
	t.gaps = slices.DeleteFunc(t.gaps, func(g gap) bool {
		return s.reaches(g.id) && g.over(s)
	})
	for i := range t.gaps {
		t.gaps[i].mark(s, now)
	}
}

// close closes the floor once everything below it has come or never will.
func (t *tracker) close(s sighting, now time.Time) {
	if !t.floor.open {
		return
	}
	if s.reaches(t.floor.id) && t.floor.over(s) {
		t.floor.open = false
		return
	}
	t.floor.mark(s, now)
}

// advance moves the cursor to id and notes what it skips.
func (t *tracker) advance(id int64, now time.Time) {
	skipped := id - t.cursor - 1
	if skipped > int64(maxGaps-len(t.gaps)) {
		t.raise(id, now)
		return
	}
	for missing := t.cursor + 1; missing < id; missing++ {
		t.gaps = append(t.gaps, gap{id: missing, noted: now})
	}
	t.cursor = id
}

// reaches reports whether the fetch would have returned the row with this id, had it been visible.
func (s sighting) reaches(id int64) bool {
	return !s.full || len(s.ids) > 0 && id <= s.ids[len(s.ids)-1]
}

// over reports whether every transaction that may have drawn the id had ended when the snapshot was taken.
func (g gap) over(s sighting) bool { return g.stamp != 0 && s.xmin >= g.stamp }

func (g *gap) mark(s sighting, now time.Time) {
	if g.stamp == 0 && now.Sub(g.noted) >= settleTime {
		g.stamp = s.xmax
	}
}
