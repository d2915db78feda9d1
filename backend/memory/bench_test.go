package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

// BenchmarkReceiveAndAck handles messages while none or a million others wait for their retry: the two should differ
// little.
func BenchmarkReceiveAndAck(b *testing.B) {
	for name, waiting := range map[string]int{"alone": 0, "million-waiting": 1_000_000} {
		b.Run(name, func(b *testing.B) {
			ctx := context.Background()
			q := memory.New("orders", memory.Options{})
			sub, err := q.Subscribe(ctx, backend.SubscribeOptions{Lease: time.Hour})
			require.NoError(b, err)
			for i := range waiting {
				require.NoError(b, q.Publish(ctx, backend.Message{ID: "waiting"}))
				batch, err := sub.Receive(ctx, 1)
				require.NoError(b, err)
				delay := time.Hour + time.Duration(i*7919%waiting)*time.Millisecond
				require.NoError(b, sub.Settle(ctx, []backend.Settlement{{Delivery: batch[0], Outcome: backend.Retry, Delay: delay}}))
			}
			for b.Loop() {
				require.NoError(b, q.Publish(ctx, backend.Message{ID: "now"}))
				batch, err := sub.Receive(ctx, 1)
				require.NoError(b, err)
				require.NoError(b, sub.Settle(ctx, []backend.Settlement{{Delivery: batch[0], Outcome: backend.Ack}}))
			}
		})
	}
}
