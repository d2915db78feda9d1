package backend_test

import (
	"testing"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// BenchmarkRecord measures what a failure costs before it goes to the broker: completed and encoded.
func BenchmarkRecord(b *testing.B) {
	d := &backend.Delivery{
		Message: backend.Message{ID: backend.NewID()}, Queue: "orders", Attempt: 3, FirstEnqueuedAt: time.Now(),
		Failure: &backend.Failure{FirstFailedAt: time.Now()},
	}
	f := backend.Failure{
		Reason: "error", Error: `post "https://payments.example.com/v1/charges": dial tcp 10.1.2.3:443: connect: connection refused`,
		ErrorType: "*net.OpError", Attempts: 3, Policy: "payments", Consumer: "worker-7f9c",
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(d.Record(f, time.Now(), true).Encode(0)) == 0 {
			b.Fatal("no envelope")
		}
	}
}
