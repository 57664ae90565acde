package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"
)

const (
	// patience is how long the program waits for what must happen.
	patience = 60 * time.Second
	// mayStop is how long a process may finish what it has begun.
	mayStop = 20 * time.Second
	// everySo is after how many kills of processes a server is broken, when there are many.
	everySo = 50
)

// roles are those of the processes.
var roles = []string{"shop", "bank"}

// director has the processes running, and killed.
type director struct {
	*ledger
	out     io.Writer
	own     []service
	running map[string]*process
	kills   map[string]int
}

// direct plays it all: so many kills, and then the comparison.
func direct(ctx context.Context, out io.Writer, w world, own []service, kills int) (r result, err error) {
	l, err := openLedger(ctx, w)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	d := &director{ledger: l, out: out, own: own, running: map[string]*process{}, kills: map[string]int{}}
	defer func() {
		for _, p := range d.running {
			_ = p.kill()
		}
	}()
	began := time.Now()
	for _, role := range roles {
		if err := d.launch(role); err != nil {
			return r, err
		}
	}
	for n := range kills {
		if err := errors.Join(d.killOne(ctx), d.breakServer(n, kills)); err != nil {
			return r, err
		}
	}
	if err := d.finish(ctx); err != nil {
		return r, err
	}
	if r, err = d.result(ctx); err == nil {
		r.InQueue, err = d.takeRest(ctx)
	}
	r.Kills, r.Took = d.kills, time.Since(began)
	return r, err
}

func (d *director) launch(role string) (err error) {
	d.running[role], err = launch(role, d.world, os.Stderr)
	return err
}

// killOne kills the shop or the bank as soon as it has done something since it was started, and starts it anew.
func (d *director) killOne(ctx context.Context) error {
	role := roles[rand.IntN(len(roles))]
	before := max(d.progress(ctx, role), 0)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the %s does nothing", role))
	defer cancel()
	for d.progress(ctx, role) <= before {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause(ctx, time.Millisecond)
	}
	pause(ctx, rand.N(30*time.Millisecond)) // wherever it may be then
	fmt.Fprintf(d.out, "kill -9 of the %s\n", role)
	if err := d.running[role].kill(); err != nil {
		return err
	}
	d.kills[role]++
	return d.launch(role)
}

// breakServer breaks each server once in between, and every so often when there are many kills.
func (d *director) breakServer(n, kills int) error {
	for i, s := range d.own {
		at := (i + 1) * min(kills, everySo) / (len(d.own) + 1)
		if n%everySo != at {
			continue
		}
		fmt.Fprintf(d.out, "%s of %s\n", s.fault, s.name)
		if err := s.strike(); err != nil {
			return err
		}
		d.kills[s.name]++
	}
	return nil
}

// finish closes the shop, has everything delivered that is on its way, and stops both processes in good order.
func (d *director) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := d.closeShop(ctx); err != nil {
		return err
	}
	if err := d.settled(ctx); err != nil {
		return err
	}
	var errs []error
	for _, role := range roles {
		errs = append(errs, d.running[role].stop(mayStop))
		delete(d.running, role)
	}
	return errors.Join(errs...)
}
