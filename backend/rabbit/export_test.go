package rabbit

import (
	"context"
	"net"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
		if err := ss.link.sock.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			panic(err)
		}
		<-ss.link.gone
	}
}

// Remembered returns how many deliveries a subscription remembers, settled or not.
func Remembered(sub backend.Subscription) int {
	s := sub.(*subscription)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	return len(s.session.order)
}

// Shut reports whether a subscription keeps acks back.
func Shut(sub backend.Subscription) bool {
	s := sub.(*subscription)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	return s.session.gate != nil
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
	return seen.work.kind, seen.work.arguments, err
}

// Band returns the name of the band for a delay.
func (q *Queue) Band(d time.Duration) string { return q.ladder[q.ladder.index(d)].text() }

// BandLimit returns the longest delay that waits where d does.
func (q *Queue) BandLimit(d time.Duration) time.Duration { return q.ladder[q.ladder.index(d)].delay() }

// Expiration returns a delay as it is sent.
func Expiration(d time.Duration) string { return strconv.FormatInt(expiration(held(d)), 10) }

// Count reads a header that counts.
func Count(value any) int { return count(value) }

// Text shows the value of a header.
func Text(value any) string { return text(value) }

// HeaderFrameSize returns how large the frame is held to be that holds a message's properties and headers.
func HeaderFrameSize(msg amqp.Publishing) int { return headerFrameSize(msg) }

// Faults returns what is found of a queue of a type and with arguments, with its dead-letter queue in order, on a broker that says
// something of itself when it takes a connection.
func (q *Queue) Faults(server amqp.Table, kind Type, arguments map[string]any, need backend.Needs) []backend.Finding {
	seen := sight{
		version:  versionOf(server),
		work:     looked{exists: true, features: features{kind: kind, arguments: arguments}},
		dead:     looked{exists: true},
		exchange: true,
	}
	return q.findings(seen, need)
}

// CountsNoNack reports whether messages of a quorum queue are released by a nack with such a broker.
func CountsNoNack(server amqp.Table) bool { return versionOf(server).countsNoNack() }

// HasQueueTimeouts reports whether a quorum queue of such a broker can have a consumer timeout of its own.
func HasQueueTimeouts(server amqp.Table) bool { return versionOf(server).hasQueueTimeouts() }
