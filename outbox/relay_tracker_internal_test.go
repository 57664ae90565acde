package outbox

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at is a moment of a tracker's tests, in seconds.
func at(seconds float64) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// settled is a tracker whose floor at id 10 is closed.
func settled() *tracker {
	t := new(tracker)
	t.recover(10, at(0))
	t.observe(sighting{xmin: 100, xmax: 100}, true, at(1))
	t.observe(sighting{xmin: 100, xmax: 100}, true, at(2))
	return t
}

func TestTrackerClosesItsFloor(t *testing.T) {
	var tr tracker
	tr.recover(10, at(0))
	require.True(t, tr.byState())
	require.EqualValues(t, 10, tr.cursor)

	tr.observe(sighting{xmin: 90, xmax: 100}, true, at(0.9))
	tr.observe(sighting{xmin: 200, xmax: 200}, true, at(0.95))
	require.True(t, tr.byState(), "a transaction that drew an id may not have shown yet")

	tr.observe(sighting{xmin: 90, xmax: 300}, true, at(1))
	tr.observe(sighting{xmin: 299, xmax: 400}, true, at(9))
	require.True(t, tr.byState(), "one of them still runs")

	tr.observe(sighting{xmin: 300, xmax: 400}, false, at(10))
	require.True(t, tr.byState(), "it was not a fetch by state")

	tr.observe(sighting{ids: []int64{3, 4}, full: true, xmin: 300, xmax: 400}, true, at(10))
	require.True(t, tr.byState(), "its limit may have hidden rows below the floor")

	tr.observe(sighting{ids: []int64{5, 11}, full: true, xmin: 300, xmax: 400}, true, at(10))
	require.False(t, tr.byState())
	require.EqualValues(t, 11, tr.cursor)
	require.Empty(t, tr.gaps)
}

func TestTrackerNotesGapsAboveTheFloorWhileItIsOpen(t *testing.T) {
	var tr tracker
	tr.recover(10, at(0))
	tr.observe(sighting{ids: []int64{2, 7, 11, 14}, xmin: 1, xmax: 50}, true, at(0))
	require.Equal(t, []int64{12, 13}, tr.missing(), "below the floor nothing is noted")
	tr.observe(sighting{ids: []int64{8, 13, 15}, xmin: 1, xmax: 50}, true, at(0))
	require.Equal(t, []int64{12}, tr.missing())
	require.EqualValues(t, 15, tr.cursor)
}

func TestTrackerForgetsAGapOnlyWhenItCannotCome(t *testing.T) {
	tr := settled()
	tr.observe(sighting{ids: []int64{12}, xmin: 90, xmax: 120}, false, at(10))
	require.Equal(t, []int64{11}, tr.missing())
	for _, step := range []struct {
		s    sighting
		at   float64
		kept bool
		why  string
	}{
		{sighting{xmin: 500, xmax: 500}, 10.9, true, "too young to be stamped"},
		{sighting{xmin: 500, xmax: 600}, 11, true, "stamped only now"},
		{sighting{xmin: 599, xmax: 900}, 99, true, "a transaction of then goes on, for hours if it likes"},
		{sighting{ids: []int64{9}, full: true, xmin: 600, xmax: 900}, 99, true, "the limit may have hidden it"},
		{sighting{xmin: 600, xmax: 900}, 99, false, "all have ended"},
	} {
		tr.observe(step.s, false, at(step.at))
		require.Equal(t, step.kept, len(tr.missing()) > 0, step.why)
	}
}

func TestTrackerTakesInAGapThatComesInTheFetchThatWouldForgetIt(t *testing.T) {
	tr := settled()
	tr.observe(sighting{ids: []int64{13}, xmin: 90, xmax: 120}, false, at(10))
	tr.observe(sighting{xmin: 90, xmax: 120}, false, at(11))
	tr.observe(sighting{ids: []int64{12}, xmin: 120, xmax: 120}, false, at(12))
	require.Empty(t, tr.missing())
	require.EqualValues(t, 13, tr.cursor)
}

func TestTrackerWithTooManyGapsGoesByState(t *testing.T) {
	tr := settled()
	tr.observe(sighting{ids: []int64{10 + maxGaps + 1}, xmin: 90, xmax: 120}, false, at(10))
	require.False(t, tr.byState())
	require.Len(t, tr.missing(), maxGaps)

	next := tr.cursor + 2
	tr.observe(sighting{ids: []int64{next}, xmin: 90, xmax: 120}, false, at(10))
	require.True(t, tr.byState())
	require.Empty(t, tr.missing())
	require.Equal(t, next, tr.cursor)

	tr.observe(sighting{xmin: 90, xmax: 130}, true, at(11))
	tr.observe(sighting{xmin: 130, xmax: 130}, true, at(12))
	require.False(t, tr.byState())

	tr.observe(sighting{ids: []int64{1 << 62}, xmin: 90, xmax: 120}, false, at(20)) // not noted one by one
	require.True(t, tr.byState())
	require.EqualValues(t, 1<<62, tr.cursor)
}

// world is a model of a lane's table: writers that draw ids and commit later or never, snapshots, and the relay's fetches.
type world struct {
	r        *rand.Rand
	now      float64
	nextID   int64
	nextXID  uint64
	writers  []writer
	rows     []int64 // committed and not deleted, ascending
	inFlight map[int64]bool
	waiting  map[int64]bool // committed and never fetched
}

type writer struct {
	xid   uint64
	ids   []int64
	ends  float64
	fails bool
}

func (w *world) snapshot() (xmin, xmax uint64) {
	xmin = w.nextXID
	for _, tx := range w.writers {
		xmin = min(xmin, tx.xid)
	}
	return xmin, w.nextXID
}

// work begins, continues and ends transactions.
func (w *world) work() {
	for range w.r.IntN(4) {
		tx := writer{xid: w.nextXID, ends: w.now + w.r.ExpFloat64()*w.r.Float64()*8, fails: w.r.IntN(10) == 0}
		w.nextXID++
		w.writers = append(w.writers, tx)
	}
	for i := range w.writers {
		if w.r.IntN(2) == 0 {
			w.nextID++
			w.writers[i].ids = append(w.writers[i].ids, w.nextID)
		}
	}
	w.writers = slices.DeleteFunc(w.writers, func(tx writer) bool {
		if tx.ends > w.now {
			return false
		}
		if !tx.fails {
			w.rows = append(w.rows, tx.ids...)
			slices.Sort(w.rows)
			for _, id := range tx.ids {
				w.waiting[id] = true
			}
		}
		return true
	})
}

// fetch does what the two statements do.
func (w *world) fetch(t *testing.T, tr *tracker, limit int, byState bool) []int64 {
	s := sighting{}
	s.xmin, s.xmax = w.snapshot()
	gaps, above := tr.missing(), 0
	for _, id := range w.rows {
		switch {
		case byState && !w.inFlight[id]:
		case !byState && slices.Contains(gaps, id):
		case !byState && id > tr.cursor && above < limit:
			above++
		default:
			continue
		}
		if len(s.ids) < limit {
			s.ids = append(s.ids, id)
		}
	}
	s.full = len(s.ids) == limit
	tr.observe(s, byState, at(w.now))
	for _, id := range s.ids {
		require.False(t, w.inFlight[id], "row %d was fetched twice", id)
		w.inFlight[id] = true
		delete(w.waiting, id)
	}
	return s.ids
}

// Whatever writers do, every committed row is fetched exactly once, and none stays that was visible in a fetch that was not
// limited, with and without leaders that follow each other.
func TestTrackerMissesNothing(t *testing.T) {
	byCursor := 0
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &world{r: rand.New(rand.NewPCG(seed, 1)), nextXID: 3, inFlight: map[int64]bool{}, waiting: map[int64]bool{}}
			limit := []int{3, 10, 30, 100}[w.r.IntN(4)]
			var tr tracker
			tr.recover(0, at(0))
			for step := range 300 {
				w.now += w.r.Float64() * 0.4
				w.work()
				if w.r.IntN(200) == 0 { // another leader
					w.inFlight = map[int64]bool{}
					tr.recover(w.nextID, at(w.now))
				}
				byState := tr.byState() || w.r.IntN(100) == 0
				if !byState {
					byCursor++
				}
				if len(w.fetch(t, &tr, limit, byState)) < limit {
					require.Empty(t, w.waiting, "step %d: visible rows were not seen", step)
				}
				w.settle()
			}
			w.writers = nil // all roll back
			for len(w.waiting) > 0 || tr.byState() || len(tr.gaps) > 0 {
				require.Less(t, w.now, 1e6)
				w.now += 0.5
				w.fetch(t, &tr, limit, tr.byState())
				w.settle()
			}
		})
	}
	require.Greater(t, byCursor, 1000)
}

// settle deletes some of what is in flight.
func (w *world) settle() {
	w.rows = slices.DeleteFunc(w.rows, func(id int64) bool {
		if !w.inFlight[id] || w.r.IntN(3) == 0 {
			return false
		}
		delete(w.inFlight, id)
		return true
	})
}
