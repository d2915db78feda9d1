package consumer

import (
	"sync"

	"github.com/redeliver/redeliver/backend"
)

// dispatch starts handlers: at most concurrency at once, in the order of receipt, and of a group one at a time.
type dispatch struct {
	r  *run
	mu sync.Mutex

	running  int
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
	if s.draining {
		s.mu.Unlock()
		for _, j := range jobs {
			j.release()
		}
		return
	}
	defer s.mu.Unlock()
	for _, j := range jobs {
		if group := j.d.Group; group != "" {
			s.groups[group] = append(s.groups[group], j)
			if len(s.groups[group]) > 1 {
				continue
			}
		}
		if s.enqueue(j) {
			go j.run()
		}
	}
}

// enqueue reports whether j may start at once; else it waits its turn. It is called with s.mu held.
func (s *dispatch) enqueue(j *job) (start bool) {
	if s.running < s.r.concurrency {
		s.running++
		return true
	}
	s.ready = append(s.ready, j)
	return false
}

// returned tells that a handler has returned, and starts the next.
func (s *dispatch) returned() {
	s.mu.Lock()
	if len(s.ready) == 0 {
		s.running--
		s.mu.Unlock()
		return
	}
	next := s.ready[0]
	s.ready[0] = nil
	s.ready = s.ready[1:]
	s.mu.Unlock()
	go next.run()
}

// handlers is how many handlers have not returned.
func (s *dispatch) handlers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
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
		// Elsewhere, since a release waits for the heartbeat that is under way, and the caller has others to settle.
		s.r.service.Go(func() {
			for _, later := range rest {
				later.release()
			}
		})
		s.mu.Unlock()
		return
	}
	s.groups[group] = rest
	start := s.enqueue(rest[0])
	s.mu.Unlock()
	if start {
		go rest[0].run()
	}
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
	s.mu.Unlock()
	for _, j := range unrun {
		j.release()
	}
}
