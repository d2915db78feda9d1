package consumer_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// BenchmarkSuccess measures what the consumer itself costs for a message: one op is one message through the memory
// backend.
func BenchmarkSuccess(b *testing.B) {
	q := memory.New("orders", memory.Options{})
	for range b.N {
		require.NoError(b, q.Publish(b.Context(), backend.Message{ID: backend.NewID(), Body: []byte("x")}))
	}
	left := b.N
	done := make(chan struct{})
	c := &consumer.Consumer{
		Queue: q, Concurrency: 100, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Policy:  policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)},
		Handler: consumer.HandlerFunc(func(context.Context, *backend.Delivery) error { return nil }),
		Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			if e.Kind == consumer.Succeeded {
				if left--; left == 0 {
					close(done)
				}
			}
		}),
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { ended <- c.Run(ctx) }()
	<-done
	b.StopTimer()
	stop()
	require.NoError(b, <-ended)
}
