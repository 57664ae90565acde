package consume

// prefix gathers what one channel's worker has finished and not yet acknowledged. Tags are finished in rising order, so all
// it must remember is the highest one and how many there are: one acknowledgement with "multiple" settles them together,
// and touches nothing above.
//
// A message that stays open while later ones finish (part of a batch was told "not now") is the barrier: above it nothing
// may join the prefix, since the multiple-ack would settle the open one too.
type prefix struct {
	last    uint64
	n       int
	barrier uint64 // lowest open tag that others may overtake; 0: none
}

// add notes that tag is finished. It returns false when tag lies above the barrier: then it must be acknowledged alone.
func (p *prefix) add(tag uint64) bool {
	if p.barrier != 0 && tag > p.barrier {
		return false
	}
	p.last = tag
	p.n++
	return true
}

// hold puts the barrier at tag; 0 takes it away.
func (p *prefix) hold(tag uint64) { p.barrier = tag }

// take empties the prefix: n messages are to be acknowledged with tag, multiple if there is more than one. n is 0 when there is
// nothing to do, in particular nothing that a multiple-ack could be the 406 "unknown delivery tag" for.
func (p *prefix) take() (tag uint64, n int) {
	tag, n = p.last, p.n
	p.last, p.n = 0, 0
	return tag, n
}
