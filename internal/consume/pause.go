package consume

import "sync"

// pause is the switch behind Pause and Resume.
type pause struct {
	mu      sync.Mutex
	on      bool
	changed chan struct{} // closed and replaced at each change
}

func newPause() *pause { return &pause{changed: make(chan struct{})} }

func (p *pause) set(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on == on {
		return
	}
	p.on = on
	close(p.changed)
	p.changed = make(chan struct{})
}

// state returns the switch and a channel that is closed when it changes.
func (p *pause) state() (on bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.on, p.changed
}
