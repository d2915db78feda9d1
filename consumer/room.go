package consumer

import (
	"context"
	"runtime"
	"sync"
)

// room counts the deliveries that may still be held: a semaphore that hands out many places at once.
type room struct {
	mu     sync.Mutex
	size   int
	free   int
	places chan struct{} // holds a token while places may be free
	idle   chan struct{} // made by empty, closed when all places are free
}

func newRoom(size int) *room {
	r := &room{size: size, free: size, places: make(chan struct{}, 1)}
	r.places <- struct{}{}
	return r
}

// take waits for a free place and takes up to limit of them. It returns 0 when ctx ends.
func (r *room) take(ctx context.Context, limit int) int {
	for {
		select {
		case <-ctx.Done():
			return 0
		case <-r.places:
		}
		gather(r.available)
		r.mu.Lock()
		n := min(r.free, limit)
		r.free -= n
		if r.free > 0 {
			r.signal()
		}
		r.mu.Unlock()
		if n > 0 {
			return n
		}
	}
}

func (r *room) give(n int) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
	r.signal()
	if r.free == r.size && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

func (r *room) signal() {
	select {
	case r.places <- struct{}{}:
	default:
	}
}

// empty returns a channel that is closed once nothing is held.
func (r *room) empty() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free == r.size {
		done := make(chan struct{})
		close(done)
		return done
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	return r.idle
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
// more than a yield, and without it the first of many would often go alone.
func gather(count func() int) {
	const rounds = 8
	for n, i := count(), 0; i < rounds; i++ {
		runtime.Gosched()
		m := count()
		if m == n {
			return
		}
		n = m
	}
}
