package retry

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"time"
)

// end is putBack when all is done. Where it fails for a lost channel nothing is left to do: the broker gives them back.
func (r *reader) end(ctx context.Context) error {
	err := r.putBack(ctx)
	var final *refusal
	if errors.As(err, &final) {
		return err
	}
	return nil
}

// putBack gives back what is held, in its order and to its place.
//
// A quorum queue keeps what was given back apart from what nobody has had, hands it out first, and appends what comes. So
// behind the messages held there must be none that had been given back before: they are taken too. That one was not says
// that there are no more of them.
func (r *reader) putBack(ctx context.Context) error {
	defer r.account(r.left()) // what is taken here was not asked for
	for _, d := range r.spare {
		r.hold(d)
	}
	r.spare, r.stop = nil, nil
	if len(r.held) == 0 && r.first == nil {
		return nil
	}
	if r.kind.quorum && r.again {
		r.expect = 0
		if err := r.begin(ctx); err != nil {
			return err
		}
		for r.again {
			got, err := r.next(ctx, math.MaxInt)
			if err != nil {
				return err
			}
			for _, d := range got {
				r.hold(d)
			}
			if len(got) == 0 {
				break
			}
		}
	}
	return r.release(ctx)
}

// release gives back what is held, and waits until it is ready again.
func (r *reader) release(ctx context.Context) (err error) {
	if len(r.held) > 0 && r.held[0].tag == r.firstTag {
		first := r.held[0]
		r.held = r.held[1:]
		if dropped := r.tryOn(ctx, first.tag, *r.first); dropped != nil {
			defer func() { err = errors.Join(dropped, err) }()
		}
		for _, d := range r.spare {
			at := len(r.held)
			if same(d, *r.first) {
				at = 0
			}
			r.held = slices.Insert(r.held, at, handed{d.DeliveryTag, d.ConsumerTag})
			r.open--
		}
		r.spare = nil
	}
	ready, err := r.ready(ctx)
	if err != nil {
		return err
	}
	under := 0
	for group := range together(r.held) {
		if err := r.ch.Nack(group[len(group)-1].tag, true, true); err != nil {
			return err
		}
		ready += len(group)
		if under++; under == pipelined {
			if err := r.returned(ctx, ready); err != nil {
				return err
			}
			under = 0
		}
	}
	r.held = nil
	return r.returned(ctx, ready)
}

// together splits what is held into groups that can be given back with one nack each: of one consumer, and of as many as the
// broker keeps in order.
func together(held []handed) iter.Seq[[]handed] {
	return func(yield func([]handed) bool) {
		for from := 0; from < len(held); {
			to := from + 1
			for to < len(held) && to-from < pipelined && held[to].consumer == held[from].consumer {
				to++
			}
			if !yield(held[from:to]) {
				return
			}
			from = to
		}
	}
}

// returned waits until so many messages are ready.
func (r *reader) returned(ctx context.Context, want int) error {
	return returned(ctx, want, func() (int, error) { return r.ready(ctx) })
}

func returned(ctx context.Context, want int, ready func() (int, error)) error {
	for late := time.Now().Add(settled); ; {
		now, err := ready()
		if err != nil || now >= want || time.Now().After(late) {
			return err
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}
