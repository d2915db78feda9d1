package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/internal/versus"
	"github.com/redeliver/redeliver/policy"
)

const benchPrefetch = 400

// BenchmarkConsumer compares a whole consumer with loops over amqp091-go that do nothing else, with the same prefetch and
// durability. Run it with -benchtime 1x: see versus.Compare. Beside the speeds it reports how long this process computes for a
// message, which other work on the machine changes less.
func BenchmarkConsumer(b *testing.B) {
	failed := errors.New("connection refused")
	for _, kind := range []rabbit.Type{rabbit.Quorum, rabbit.Classic} {
		for _, bc := range []struct {
			name     string
			messages int
			result   error // of the handler
			raw      func(*rawLoop, testing.TB, int)
		}{
			{"success", 20_000, nil, (*rawLoop).acks},
			{"retry", 10_000, failed, (*rawLoop).retries},
			{"retry-alike", 10_000, failed, (*rawLoop).retriesAlike},
			{"retry-one-by-one", 2_000, failed, (*rawLoop).retriesOneByOne},
		} {
			b.Run(string(kind)+"/"+bc.name, func(b *testing.B) {
				var rawCPU, ourCPU time.Duration
				runs := 0
				for b.Loop() {
					versus.Compare(b, func() float64 {
						runs++
						return perSecond(b, kind, bc.messages, &rawCPU, func(q *rabbit.Queue) {
							r := openRaw(b, q)
							bc.raw(r, b, bc.messages)
							require.NoError(b, r.conn.Close())
						})
					}, func() float64 {
						return perSecond(b, kind, bc.messages, &ourCPU, func(q *rabbit.Queue) {
							versus.Consume(b, q, delayed, benchPrefetch, bc.messages, bc.result)
						})
					})
				}
				perMessage := func(cpu time.Duration) float64 { return cpu.Seconds() * 1e6 / float64(runs*bc.messages) }
				b.ReportMetric(perMessage(rawCPU), "base-cpu-us/msg")
				b.ReportMetric(perMessage(ourCPU), "cpu-us/msg")
			})
		}
	}
}

// perSecond fills a queue of its own and tells how many messages a second work handles. It adds to cpu what that took.
func perSecond(b *testing.B, kind rabbit.Type, messages int, cpu *time.Duration, work func(*rabbit.Queue)) float64 {
	b.Helper()
	url := brokertest.Rabbit(b)
	q, err := rabbit.Open(url, fmt.Sprintf("bench%d", rand.Uint64()), rabbit.Options{Type: kind})
	require.NoError(b, err)
	require.NoError(b, q.Create(b.Context()))
	require.NoError(b, q.Declare(b.Context(), delayed))
	// At once, not when the benchmark ends: a dozen filled queues would be in the way of the next pair.
	defer func() {
		require.NoError(b, q.Close(context.Background()))
		remove(b, url, q)
	}()
	body := []byte(strings.Repeat("x", 200))
	for range messages / 1000 {
		batch := make([]backend.Message, 1000)
		for i := range batch {
			batch[i] = backend.Message{ID: backend.NewID(), Body: body}
		}
		require.NoError(b, q.Publish(b.Context(), batch...))
	}
	start, used := time.Now(), usedCPU(b)
	work(q)
	took := time.Since(start)
	*cpu += usedCPU(b) - used
	return float64(messages) / took.Seconds()
}

// usedCPU returns how long this process has computed.
func usedCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// delayed makes all retries wait for an hour, in one parking queue.
var delayed = policy.Policy{Name: "bench", MaxAttempts: 3, Backoff: policy.Fixed(time.Hour)}

// rawLoop is what one would write by hand for speed alone: it handles nothing, decides nothing, and stops at the first error.
// Its copies give the same guarantee: persistent, mandatory and confirmed before the ack, with a count and an error, through the
// same exchange to the same parking queue, so that the routing key survives.
type rawLoop struct {
	conn       *amqp.Connection
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	exchange   string
	band       string
	alike      bool // copies carry as much as ours do
}

func openRaw(b *testing.B, q *rabbit.Queue) *rawLoop {
	b.Helper()
	conn, err := amqp.Dial(brokertest.Rabbit(b))
	require.NoError(b, err)
	ch, err := conn.Channel()
	require.NoError(b, err)
	require.NoError(b, ch.Qos(benchPrefetch, 0, false))
	require.NoError(b, ch.Confirm(false))
	deliveries, err := ch.Consume(q.Name(), "", false, false, false, false, nil)
	require.NoError(b, err)
	require.Len(b, q.ParkingQueues(delayed), 1)
	return &rawLoop{conn: conn, ch: ch, deliveries: deliveries, exchange: q.Name() + ".retry", band: q.Band(time.Hour)}
}

// batches calls f with what is there, at most 100 at once, until n messages were there.
func (r *rawLoop) batches(n int, f func([]amqp.Delivery)) {
	var batch []amqp.Delivery
	for n > 0 {
		batch = append(batch[:0], <-r.deliveries)
		for more := true; more && len(batch) < min(n, 100); {
			select {
			case d := <-r.deliveries:
				batch = append(batch, d)
			default:
				more = false
			}
		}
		n -= len(batch)
		f(batch)
	}
}

// acks acks each batch with one frame.
func (r *rawLoop) acks(tb testing.TB, n int) {
	r.batches(n, func(batch []amqp.Delivery) {
		require.NoError(tb, batch[len(batch)-1].Ack(true))
	})
}

// retries publishes a copy of each message of a batch, and acks it with one frame when all of it is confirmed, while the next
// is on its way.
func (r *rawLoop) retries(tb testing.TB, n int) {
	type sent struct {
		last     amqp.Delivery
		confirms []*amqp.DeferredConfirmation
	}
	pipeline := make(chan sent, benchPrefetch)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range pipeline {
			for _, c := range s.confirms {
				if !c.Wait() {
					tb.Error("the broker refused a copy")
					return
				}
			}
			if err := s.last.Ack(true); err != nil {
				tb.Error(err)
				return
			}
		}
	}()
	r.batches(n, func(batch []amqp.Delivery) {
		s := sent{last: batch[len(batch)-1]}
		for _, d := range batch {
			s.confirms = append(s.confirms, r.publish(tb, d))
		}
		pipeline <- s
	})
	close(pipeline)
	<-done
}

// retriesAlike does the same with copies like ours, which leaves out what the headers cost the broker.
func (r *rawLoop) retriesAlike(tb testing.TB, n int) {
	r.alike = true
	r.retries(tb, n)
}

// retriesOneByOne waits for each confirmation before it goes on.
func (r *rawLoop) retriesOneByOne(tb testing.TB, n int) {
	for range n {
		d := <-r.deliveries
		require.True(tb, r.publish(tb, d).Wait())
		require.NoError(tb, d.Ack(false))
	}
}

func (r *rawLoop) publish(tb testing.TB, d amqp.Delivery) *amqp.DeferredConfirmation {
	msg := amqp.Publishing{
		Headers:      amqp.Table{"redeliver-band": r.band, "attempt": int64(2), "error": "connection refused"},
		DeliveryMode: amqp.Persistent, MessageId: d.MessageId, Timestamp: d.Timestamp, Body: d.Body,
	}
	if r.alike {
		msg.Expiration = "3600051"
		msg.Headers["error"] = failureRecord
		msg.Headers["number"], msg.Headers["enqueued"] = int64(1), d.Timestamp.UnixMilli()
	}
	confirm, err := r.ch.PublishWithDeferredConfirm(r.exchange, d.RoutingKey, true, false, msg)
	require.NoError(tb, err)
	return confirm
}

// failureRecord is as long as that of a retry.
var failureRecord = strings.Repeat("x", 330)
