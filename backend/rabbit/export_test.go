package rabbit

import (
	"context"
	"net"

	"github.com/redeliver/redeliver/backend"
)

// Crash ends the connection of a subscription as the death of its process would, after what it has written.
func Crash(sub backend.Subscription) {
	s := sub.(*subscription)
	s.mu.Lock()
	ss := s.session
	s.mu.Unlock()
	if ss != nil {
		// The broker may drop what its channel has not looked at when a connection breaks. By the time it has opened another
		// channel it has looked.
		if ch, err := ss.link.conn.Channel(); err == nil {
			_ = ch.Close()
		}
		// Close would discard what the broker has not read yet, if it has sent something meanwhile.
		if err := ss.link.sock.(*net.TCPConn).CloseWrite(); err != nil {
			panic(err)
		}
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

// Probe returns what the queue was found to be declared with.
func (q *Queue) Probe(ctx context.Context) (kind Type, arguments map[string]any, err error) {
	seen, err := q.look(ctx)
	return seen.kind, seen.arguments, err
}
