package endurance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

// The link to RabbitMQ is cut every second while a consumer works, and the broker is restarted twice. Nothing is lost, no
// copy of a message fails or lapses more often than the policy allows, and a handler that succeeds finds no dead letter.
//
// With ENDURANCE_FULL=1 in the environment it is 10,000 messages and a minute of cuts, else a seventh of that.
func TestRabbitConsumerOutlivesCutsAndRestarts(t *testing.T) {
	messages, seconds := 1500, 9
	if os.Getenv("ENDURANCE_FULL") != "" {
		messages, seconds = 10_000, 60
	}
	for _, c := range []struct {
		kind           rabbit.Type
		perMilleFailed uint32
	}{{rabbit.Quorum, 400}, {rabbit.Quorum, 0}, {rabbit.Classic, 400}, {rabbit.Classic, 0}} {
		t.Run(fmt.Sprintf("%s queue, %d failures in 1000", c.kind, c.perMilleFailed), func(t *testing.T) {
			t.Parallel()
			server := brokertest.PrivateRabbit(t)
			link := brokertest.Proxy(t, server.URL())
			quiet := slog.New(slog.DiscardHandler)
			near := openRabbit(t, server.URL(), "orders", rabbit.Options{Type: c.kind, Logger: quiet})
			require.NoError(t, near.Create(t.Context()))
			require.NoError(t, near.Declare(t.Context(), patient))
			declared := time.Now()
			require.NoError(t, near.Publish(t.Context(), numbered(messages)...))

			var mu sync.Mutex
			handled := make(map[string]int)    // how often each message was
			ended := make(map[string]struct{}) // handled, or dead-lettered
			var beyond []string                // deliveries that the policy does not allow
			const places = 50
			pace := time.Duration(seconds) * time.Second * places / time.Duration(messages) // so that the cuts meet a consumer at work
			working := &consumer.Consumer{
				Queue: openRabbit(t, link.URL(), "orders", rabbit.Options{Logger: quiet}), Policy: patient, Concurrency: places, Logger: quiet,
				Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
					if d.Attempt > patient.MaxAttempts || d.Lapses > policy.DefaultMaxLapses {
						mu.Lock()
						beyond = append(beyond, fmt.Sprintf("%s: attempt %d, %d lapses", d.ID, d.Attempt, d.Lapses))
						mu.Unlock()
					}
					select {
					case <-time.After(rand.N(2 * pace)):
					case <-ctx.Done():
						return context.Cause(ctx)
					}
					if perMille(d) < c.perMilleFailed {
						return errors.New("by chance")
					}
					mu.Lock()
					defer mu.Unlock()
					// Whether the ack arrives nobody can know when the link is cut.
					handled[d.ID]++
					ended[d.ID] = struct{}{}
					return nil
				}),
				Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
					if e.Kind == consumer.DeadLettered {
						mu.Lock()
						defer mu.Unlock()
						ended[e.Delivery.ID] = struct{}{}
					}
				}),
			}
			ctx, stop := context.WithCancel(t.Context())
			returned := make(chan error, 1)
			go func() { returned <- working.Run(ctx) }()

			// RabbitMQ can forget a queue that it has made in the three seconds before it stops.
			time.Sleep(time.Until(declared.Add(3 * time.Second)))
			second := time.NewTicker(time.Second)
			defer second.Stop()
			for n := range seconds {
				<-second.C
				if n == seconds/3 || n == 2*seconds/3 {
					server.Restart()
					continue
				}
				link.Cut()
			}
			// What came due while its queue was not there is handed on after three minutes. That the broker holds nothing would
			// not do: a quorum queue that has just started counts as empty for some seconds.
			done := func() bool {
				mu.Lock()
				all := len(ended) == messages
				mu.Unlock()
				return all && held(server) == 0
			}
			for deadline := time.Now().Add(6 * time.Minute); !done() && time.Now().Before(deadline); {
				time.Sleep(time.Second)
			}
			stop()
			require.NoError(t, <-returned)
			require.Zero(t, held(server))

			buried := takeAll(t, server.URL(), near.Name()+"_dlq")
			there := maps.Clone(handled)
			for _, d := range buried {
				there[d.ID]++
				require.Equal(t, string(policy.ReasonExhausted), d.Failure.Reason, d.ID)
				require.Equal(t, patient.MaxAttempts, d.Failure.Attempts, d.ID)
				require.LessOrEqual(t, d.Failure.Lapses, policy.DefaultMaxLapses, d.ID)
			}
			require.Empty(t, beyond)
			duplicates := -messages
			for _, times := range there {
				duplicates += times
			}
			t.Logf("%d messages, %d handled more often than once or dead-lettered beside, %d dead letters", messages, duplicates, len(buried))
			require.Len(t, there, messages, "none is lost")
			if c.perMilleFailed == 0 {
				require.Empty(t, buried)
			} else {
				require.NotEmpty(t, buried)
			}
		})
	}
}

func openRabbit(tb testing.TB, url, name string, opts rabbit.Options) *rabbit.Queue {
	tb.Helper()
	q, err := rabbit.Open(url, name, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(tb, q.Close(ctx))
	})
	return q
}

// held is how many messages a broker holds that are not dead letters.
func held(server *brokertest.RabbitServer) int {
	n := 0
	for name, q := range server.Queues() {
		if name != "orders_dlq" {
			n += q.Messages
		}
	}
	return n
}

// takeAll takes all messages of a queue.
func takeAll(t *testing.T, url, name string) []*backend.Delivery {
	t.Helper()
	q := openRabbit(t, url, name, rabbit.Options{DeadLetterQueue: "orders"})
	sub, err := q.Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 100})
	require.NoError(t, err)
	var all []*backend.Delivery
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		ds, err := sub.Receive(ctx, 100)
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return all
		}
		for _, d := range ds {
			require.NoError(t, sub.Settle(t.Context(), []backend.Settlement{{Delivery: d, Outcome: backend.Ack}}))
		}
		all = append(all, ds...)
	}
}
