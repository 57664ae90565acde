package main

import (
	"context"
	"testing"
	"time"
	"os"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

func TestZZ(t *testing.T) {
	n := testenv.Node(t)
	tour := newTour(os.Stdout, n.URL(), lent{n})
	d, err := openDepot(t.Context(), tour, reconnect.Config{})
	if err != nil { t.Fatal(err) }
	defer d.close()
	k := newDesk()
	for i := range 15 {
		k.sendBatch(t.Context(), d.producer, 100, 5*time.Second)
		pause(t.Context(), time.Duration(i%3)*300*time.Millisecond)
		n.Alarm(true)
		pause(t.Context(), 300*time.Millisecond)
		before := d.conn.State()[0].Phase
		tl, _ := k.sendBatch(context.Background(), d.producer, 100, 300*time.Millisecond)
		after := d.conn.State()[0].Phase
		n.Alarm(false)
		t.Log(before, after, tl.of(confirmed), tl.of(doubtful), tl.of(blocked), tl.of(unknown))
		pause(t.Context(), 100*time.Millisecond)
	}
}
