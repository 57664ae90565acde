package exchange

import "sync"

// users counts the channels that use a live queue.
type users struct {
	mu    sync.Mutex
	queue string
	n     int
	none  chan struct{} // closed when there are none any more; nil while nobody waits for that
}

// enter notes a user of queue. Those of another one no longer count.
func (u *users) enter(queue string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.queue != queue {
		u.wake()
		u.queue, u.n = queue, 0
	}
	u.n++
}

// leave ends what enter began.
func (u *users) leave(queue string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.queue != queue {
		return
	}
	if u.n--; u.n == 0 {
		u.wake()
	}
}

// free is nil when nobody uses queue, else closed when that is so.
func (u *users) free(queue string) <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.queue != queue || u.n == 0 {
		return nil
	}
	if u.none == nil {
		u.none = make(chan struct{})
	}
	return u.none
}

// wake tells those who wait; mu is held.
func (u *users) wake() {
	if u.none != nil {
		close(u.none)
		u.none = nil
	}
}
