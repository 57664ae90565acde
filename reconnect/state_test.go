package reconnect

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// phases are "name phase" of states, for comparison.
func phases(states []State) []string {
	var out []string
	for _, s := range states {
		out = append(out, s.Name+" "+s.Phase)
	}
	return out
}

// inASecond is a deadline.
func inASecond(t *testing.T) <-chan struct{} {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	t.Cleanup(cancel)
	return ctx.Done()
}

func TestBoardKeepsSinceAndOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(nil)
		defer b.close(inASecond(t))
		worker := &supervised{}
		began := time.Now()
		b.add(worker, State{Name: "w", Phase: "starting"})
		b.set("consuming", State{Phase: "connecting", NextTry: began.Add(2 * time.Second)})
		time.Sleep(time.Second)
		b.update(worker, State{Name: "w", Phase: "starting", Attempts: 2, Reason: "why"})
		require.Equal(t, []State{
			{Name: "consuming", Phase: "connecting", Since: began, NextTry: began.Add(2 * time.Second)},
			{Name: "w", Phase: "starting", Since: began, Attempts: 2, Reason: "why"},
		}, b.all(), "links first; a phase begins once")
		time.Sleep(time.Second)
		require.Zero(t, b.all()[0].NextTry, "what is due is being tried")
		b.update(worker, State{Name: "w", Phase: "running"})
		require.Equal(t, State{Name: "w", Phase: "running", Since: began.Add(2 * time.Second)}, b.all()[1])
		b.remove(worker, nil)
		b.update(worker, State{Name: "w", Phase: "consuming"})
		require.Equal(t, []string{"consuming connecting"}, phases(b.all()), "what outlives its function is not heard")
	})
}

func TestHookIsToldInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []State
		b := newBoard(func(s State) { told = append(told, s) })
		for _, p := range []string{"connecting", "connected", "connected", "blocked", "connected", "closed"} {
			b.set("publishing", State{Phase: p})
			synctest.Wait()
		}
		b.close(inASecond(t))
		require.Equal(t, []string{"publishing connecting", "publishing connected", "publishing blocked", "publishing connected",
			"publishing closed"}, phases(told), "no change is told twice")
	})
}

func TestSlowHookHearsTheLatest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []State
		b := newBoard(func(s State) {
			told = append(told, s)
			time.Sleep(time.Hour)
		})
		began := time.Now()
		b.set("publishing", State{Phase: "connecting"})
		synctest.Wait()
		worker := &supervised{}
		b.add(worker, State{Name: "w", Phase: "starting"})
		gone := &supervised{}
		b.add(gone, State{Name: "gone", Phase: "starting"})
		for range 1000 {
			b.set("publishing", State{Phase: "connected"})
			b.update(worker, State{Name: "w", Phase: "running"})
			b.set("publishing", State{Phase: "connecting"})
			b.update(worker, State{Name: "w", Phase: "consuming"})
		}
		b.remove(gone, errors.New("why"))
		require.Equal(t, began, time.Now(), "nobody waits for the hook")
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		require.Equal(t, []string{"publishing connecting", "w consuming", "publishing connecting", "gone ended"}, phases(told))
		b.close(inASecond(t))
	})
}

func TestBoardCloseTellsTheRestAndIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []State
		b := newBoard(func(s State) { told = append(told, s) })
		b.set("publishing", State{Phase: "closed"})
		b.set("consuming", State{Phase: "closed"})
		b.close(inASecond(t))
		require.Equal(t, []string{"publishing closed", "consuming closed"}, phases(told))

		stuck := make(chan struct{})
		b = newBoard(func(State) { <-stuck })
		b.set("publishing", State{Phase: "closed"})
		began := time.Now()
		b.close(inASecond(t))
		require.Equal(t, time.Second, time.Since(began))
		close(stuck)
		<-b.stopped
	})
}

func TestStatesCompare(t *testing.T) {
	t.Parallel()
	s := State{Name: "a", Phase: "running", Since: time.Now(), Attempts: 1, Reason: "r"}
	require.True(t, slices.Contains([]State{s}, s))
}
