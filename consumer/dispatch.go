package consumer

import (
	"sync"

	"github.com/redeliver/redeliver/backend"
)

// dispatch starts handlers: at most concurrency at once, in the order of receipt, and of a group one at a time.
//
// A worker handles what is ready, one delivery after the other, and ends when nothing is. Each that begins a delivery while
// more are ready starts another worker, and no more than one is on its way at a time. So a hundred handlers that block run in
// a hundred goroutines at once, while those that return at once need few, which keep their stacks.
type dispatch struct {
	r  *run
	mu sync.Mutex

	workers  int               // each has a handler that has not returned, or is about to
	starting bool              // a worker was started and has not begun
	ready    []*job            // received, free to start, in order
	groups   map[string][]*job // by group, the one under way first
	draining bool
}

func newDispatch(r *run) *dispatch {
	return &dispatch{r: r, groups: make(map[string][]*job)}
}

// add takes the deliveries of one batch, under one lock: the first of a group must not end before the others are known.
func (s *dispatch) add(jobs []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		s.release(jobs)
		return
	}
	for _, j := range jobs {
		if group := j.d.Group; group != "" {
			s.groups[group] = append(s.groups[group], j)
			if len(s.groups[group]) > 1 {
				continue
			}
		}
		s.ready = append(s.ready, j)
	}
	s.start()
}

// start starts a worker if one is wanted. It is called with s.mu held.
func (s *dispatch) start() {
	if s.starting || len(s.ready) == 0 || s.workers == s.r.concurrency {
		return
	}
	s.starting = true
	s.workers++
	go s.work(true)
}

// work is the life of a worker; fresh tells that start has just started it.
func (s *dispatch) work(fresh bool) {
	through := false
	defer func() {
		if !through {
			go s.work(false) // in place of this one, whose handler has ended the goroutine
		}
	}()
	for j := s.next(fresh); j != nil; j = s.next(false) {
		j.run()
	}
	through = true
}

// next returns what a worker handles next, or nil if nothing is ready: the worker then counts no more.
func (s *dispatch) next(fresh bool) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh {
		s.starting = false
	}
	if len(s.ready) == 0 {
		s.workers--
		return nil
	}
	next := s.ready[0]
	s.ready[0] = nil
	s.ready = s.ready[1:]
	s.start()
	return next
}

// handlers is how many handlers have not returned.
func (s *dispatch) handlers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workers
}

// ended tells how a delivery ended. The next of its group may then start; after anything but success the rest of the group
// in hand is released unrun, since it must not overtake.
func (s *dispatch) ended(j *job, outcome backend.Outcome) {
	group := j.d.Group
	if group == "" {
		return
	}
	s.mu.Lock()
	queue := s.groups[group]
	if len(queue) == 0 || queue[0] != j {
		s.mu.Unlock()
		return
	}
	rest := queue[1:]
	if len(rest) == 0 {
		delete(s.groups, group)
		s.mu.Unlock()
		return
	}
	if outcome != backend.Ack && outcome != backend.Discard {
		delete(s.groups, group)
		s.release(rest)
		s.mu.Unlock()
		return
	}
	s.groups[group] = rest
	s.ready = append(s.ready, rest[0])
	s.start()
	s.mu.Unlock()
}

// drain releases what has not started, and all that is added from now on.
func (s *dispatch) drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.withdraw()
}

// withdraw releases what has not started.
func (s *dispatch) withdraw() {
	s.mu.Lock()
	unrun := s.ready
	s.ready = nil
	for group, queue := range s.groups {
		unrun = append(unrun, queue[1:]...)
		s.groups[group] = queue[:1:1]
	}
	s.release(unrun)
	s.mu.Unlock()
}

// release gives deliveries back unrun: elsewhere, since a release waits for the heartbeat that is under way, and the caller has
// other things to do.
func (s *dispatch) release(jobs []*job) {
	if len(jobs) == 0 {
		return
	}
	s.r.service.Go(func() {
		for _, j := range jobs {
			j.release()
		}
	})
}
