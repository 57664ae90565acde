package consume

import "sync"

// pause is the switch behind Pause and Resume.
type pause struct {
	mu      sync.Mutex
	now     pauseState
	changed chan struct{} // closed and replaced at each change
}

// pauseState is the switch at one moment.
type pauseState struct {
	on    bool
	times int // that Pause was called, so that none goes unnoticed however soon Resume follows
}

func newPause() *pause { return &pause{changed: make(chan struct{})} }

func (p *pause) set(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.on == on {
		return
	}
	p.now.on = on
	if on {
		p.now.times++
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// state returns the switch and a channel that is closed when it changes.
func (p *pause) state() (now pauseState, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now, p.changed
}
