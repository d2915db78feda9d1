package consumer

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// room counts the deliveries that may still be held: a semaphore that hands out many places at once.
//
// Whoever takes places makes one call to the broker for them, and calls want to be few and large. So a call is made at
// once if none is under way, and beside others only for a full batch: what becomes free meanwhile gathers for the next.
type room struct {
	batch int // most places for one call
	size  int

	mu      sync.Mutex
	free    int
	calls   int
	due     chan struct{} // holds a token while a call may be due
	waiters []waiter
}

func newRoom(size, batch int) *room {
	r := &room{batch: batch, size: size, free: size, due: make(chan struct{}, 1)}
	signal(r.due)
	return r
}

// take waits until a call is due, and takes the places for it. It returns 0 when ctx ends.
func (r *room) take(ctx context.Context) int {
	for {
		select {
		case <-ctx.Done():
			return 0
		case <-r.due:
		}
		gather(r.available)
		if n := r.claim(); n > 0 {
			return n
		}
	}
}

func (r *room) claim() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isDue() {
		return 0
	}
	n := min(r.free, r.batch)
	r.free -= n
	r.calls++
	r.wake()
	return n
}

func (r *room) isDue() bool { return r.free > 0 && (r.calls == 0 || r.free >= r.batch) }

func (r *room) wake() {
	if r.isDue() {
		signal(r.due)
	}
}

// called tells that a call has ended, with that many places unused.
func (r *room) called(unused int) {
	r.mu.Lock()
	r.calls--
	r.mu.Unlock()
	r.give(unused)
}

// give makes places free.
func (r *room) give(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
	r.wake()
	r.tell()
}

// atMost returns a channel that is closed once no more than n are held.
func (r *room) atMost(n int) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := waiter{n, make(chan struct{})}
	r.waiters = append(r.waiters, w)
	r.tell()
	return w.reached
}

// tell closes the channels of those who wait for no more than what is held. It is called with r.mu held.
func (r *room) tell() {
	r.waiters = slices.DeleteFunc(r.waiters, func(w waiter) bool {
		reached := r.size-r.free <= w.most
		if reached {
			close(w.reached)
		}
		return reached
	})
}

type waiter struct {
	most    int
	reached chan struct{}
}

func (r *room) available() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.free
}

func (r *room) taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size - r.free
}

// gather lets other goroutines run while they still add to what count counts. A call to a broker costs a hundred times
// more than a few yields, and without them the first of many would often go alone.
func gather(count func() int) {
	const rounds, quiet = 64, 4
	for n, same, i := count(), 0, 0; same < quiet && i < rounds; i++ {
		runtime.Gosched()
		m := count()
		if m == n {
			same++
		} else {
			n, same = m, 0
		}
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
