package rabbit

import "github.com/redeliver/redeliver/backend"

// Crash cuts the connection of a subscription, as the death of its process would, and sees to it that it receives nothing
// more.
func Crash(sub backend.Subscription) {
	s := sub.(*subscription)
	s.mu.Lock()
	ss := s.session
	s.mu.Unlock()
	if ss != nil {
		ss.link.cut()
		<-ss.link.gone
	}
}

// Known returns the names of the parking queues that were declared through q.
func (q *Queue) Known() (names []string) {
	for _, b := range q.ladder {
		names = append(names, q.top.parking(b))
	}
	return names
}
