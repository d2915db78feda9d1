package policy_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/redeliver/redeliver/policy"
)

var payments = policy.Policy{
	MaxAttempts: 8,
	Backoff:     policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second},
	Jitter:      policy.FullJitter,
}

const someID = "0197a3f2-6c1e-7b5a-9d24-3f8e5b7c1a90"

var sink policy.Decision

func BenchmarkDecide(b *testing.B) {
	plain := errors.New("connection refused")
	wrapped := fmt.Errorf("charge: %w", fmt.Errorf("post: %w", plain))
	benchmarks := []struct {
		name   string
		policy policy.Policy
		f      policy.Failure
	}{
		{"plain", payments, policy.Failure{Attempt: 3, Err: plain, MessageID: someID}},
		{"wrapped", payments, policy.Failure{Attempt: 3, Err: wrapped, MessageID: someID}},
		{"joined", payments, policy.Failure{Attempt: 3, Err: errors.Join(plain, wrapped), MessageID: someID}},
		{"hint", payments, policy.Failure{Attempt: 3, Err: policy.RetryAfter(time.Minute, plain), MessageID: someID}},
		{"permanent", payments, policy.Failure{Attempt: 3, Err: fmt.Errorf("charge: %w", policy.Permanent(plain)), MessageID: someID}},
		{"proportional", policy.Policy{
			MaxAttempts: 50,
			Backoff:     policy.Exponential{Base: time.Second, Factor: 1.7, Max: time.Minute},
			Jitter:      policy.Proportional(0.15),
		}, policy.Failure{Attempt: 30, Err: plain, MessageID: someID}},
		{"largest attempt", policy.Policy{
			MaxAttempts: policy.Unlimited,
			Backoff:     policy.Exponential{Base: 1, Factor: 1.000001},
			Jitter:      policy.Additive(1),
		}, policy.Failure{Attempt: math.MaxInt, Err: plain, MessageID: someID}},
		{"ten rules, the last matches", tenRules(), policy.Failure{Attempt: 3, Err: io.EOF, MessageID: someID}},
		{"ten rules, none matches", tenRules(), policy.Failure{Attempt: 3, Err: plain, MessageID: someID}},
	}
	for _, bm := range benchmarks {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = bm.policy.Decide(bm.f)
			}
		})
	}
}

func BenchmarkExplain(b *testing.B) {
	d := payments.Decide(policy.Failure{Attempt: 3, MessageID: someID})
	b.ReportAllocs()
	for b.Loop() {
		_ = d.Explain()
	}
}
