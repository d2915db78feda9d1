package retry_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/retry"
)

var payments = policy.Policy{MaxAttempts: 8, Backoff: policy.Exponential{Base: 1, Max: 2}, Jitter: policy.FullJitter}

func succeed(context.Context) error { return nil }

// The one allocation is the context that tells the attempt.
func TestSuccessAtFirstCostsOneAllocation(t *testing.T) {
	ctx := t.Context()
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = retry.Do(ctx, payments, succeed) }), 1.0)
}

func BenchmarkDo(b *testing.B) {
	ctx := b.Context()
	b.Run("success at first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = retry.Do(ctx, payments, succeed)
		}
	})
	b.Run("success at second, no wait", func(b *testing.B) {
		p := payments
		p.Backoff = policy.Immediate{Attempts: 1, Then: p.Backoff}
		b.ReportAllocs()
		for b.Loop() {
			_ = retry.Do(ctx, p, func(ctx context.Context) error {
				if retry.Attempt(ctx) == 1 {
					return errDown
				}
				return nil
			})
		}
	})
}
