package consumer_test

import (
	"sync"
	"time"
)

// counting is a breaker that never opens.
type counting struct {
	mu                           sync.Mutex
	permits, successes, failures int
}

func (b *counting) IsClosed() bool                { return true }
func (b *counting) RemainingDelay() time.Duration { return 0 }

func (b *counting) TryAcquirePermit() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.permits++
	return true
}

func (b *counting) RecordSuccess() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.successes++
}

func (b *counting) RecordError(error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
}
