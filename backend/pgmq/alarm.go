package pgmq

import (
	"context"
	"sync"
	"time"
)

// alarm wakes the one who waits on it, at the earliest time that anybody has set.
type alarm struct {
	mu      sync.Mutex
	at      time.Time // zero: not set
	changed chan struct{}
}

func newAlarm() *alarm { return &alarm{changed: make(chan struct{}, 1)} }

// set sees to it that the alarm goes off at that time, or earlier.
func (a *alarm) set(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	a.at = at
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// wait returns after d, or when ctx ends. It reports whether the alarm went off, which resets it.
func (a *alarm) wait(ctx context.Context, d time.Duration) (rang bool) {
	end := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		next, rang := a.next(end)
		now := time.Now()
		if rang || !next.After(now) {
			return rang
		}
		timer.Reset(next.Sub(now))
		select {
		case <-timer.C:
		case <-a.changed:
		case <-ctx.Done():
			return false
		}
	}
}

// next returns when to look again, at end or earlier, or that the alarm went off.
func (a *alarm) next(end time.Time) (next time.Time, rang bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.at.IsZero():
		return end, false
	case !a.at.After(time.Now()):
		a.at = time.Time{}
		return end, true
	case a.at.Before(end):
		return a.at, false
	}
	return end, false
}
