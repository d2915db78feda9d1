package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// keeper holds the leases: it extends them at every third of their length, in batches, always to the full length.
type keeper struct {
	r    *run
	mu   sync.Mutex
	held map[*job]struct{}
	late chan struct{} // holds a token when a delivery came so late that its first heartbeat is due
}

func newKeeper(r *run) *keeper {
	return &keeper{r: r, held: make(map[*job]struct{}), late: make(chan struct{}, 1)}
}

// add takes a delivery that was received.
func (k *keeper) add(j *job) {
	j.parts.Store(1)
	k.mu.Lock()
	k.held[j] = struct{}{}
	late := time.Until(j.leaseUntil) < k.r.lease*2/3
	k.mu.Unlock()
	if late {
		signal(k.late)
	}
	j.d.OnLost(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.lose(j, fmt.Errorf("message %q of queue %q: %w: the connection that held it is gone", j.d.ID, j.d.Queue, backend.ErrLeaseLost))
	})
}

// start tells that the handler is about to run; its context ends when the lease is lost. It returns false if that has
// happened already.
func (k *keeper) start(j *job) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	j.running = true
	return j.lost == nil
}

// detach ends the heartbeats of a delivery. It returns why the lease was lost, or nil. Where a heartbeat is under way it also
// returns a channel that is closed at its end: it has to be awaited, since it would overwrite a retry's delay.
func (k *keeper) detach(j *job) (extending <-chan struct{}, lost error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, j)
	return j.extending, j.lost
}

// remove ends the heartbeats of a delivery whose handler is not called, and waits for one that is under way.
func (k *keeper) remove(j *job) {
	if extending, _ := k.detach(j); extending != nil {
		<-extending
	}
}

// lost is why the lease was lost, or nil.
func (k *keeper) lost(j *job) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return j.lost
}

// left is for how long the lease surely lasts.
func (k *keeper) left(j *job) time.Duration {
	if !k.r.limits.LeaseExpires {
		return k.r.lease
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(j.leaseUntil)
}

// lose notes that a lease is gone, and cancels the handler. It is called with k.mu held.
func (k *keeper) lose(j *job, why error) {
	if j.lost == nil {
		j.lost = why
	}
	if j.running {
		j.ctx.lose(why)
	}
}

// unfinished returns the deliveries whose outcome is not decided.
func (k *keeper) unfinished() []*job {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.held))
}

func (k *keeper) run() {
	// A heartbeat that failed is tried again four times as often.
	regular, urgent := k.r.lease/3, k.r.lease/12
	timer := time.NewTimer(regular)
	defer timer.Stop()
	for {
		select {
		case <-k.r.serving.Done():
			return
		case <-timer.C:
		case <-k.late:
		}
		if k.beat() {
			timer.Reset(regular)
		} else {
			timer.Reset(urgent)
		}
	}
}

// beat extends all leases and reports whether that went well. It also ends what has no future: handlers whose lease is
// about to run out, and those that do not return after their timeout.
func (k *keeper) beat() (ok bool) {
	patience := min(k.r.lease/3, k.r.settle)
	now := time.Now()
	var extend, overdue []*job
	k.mu.Lock()
	for j := range k.held {
		switch {
		case j.running && now.After(j.ctx.deadline().Add(patience)):
			overdue = append(overdue, j)
		case j.lost == nil && j.d.Extending():
			extend = append(extend, j)
		}
	}
	k.mu.Unlock()
	for _, j := range overdue {
		k.r.service.Go(j.force)
	}
	if !k.r.limits.LeaseExpires {
		return true
	}
	// At the same time, since one that hangs must not keep the others from being sent while their leases last.
	var failed atomic.Bool
	var calls sync.WaitGroup
	for batch := range slices.Chunk(extend, k.r.limits.SettleBatch) {
		calls.Go(func() {
			if !k.extend(batch) {
				failed.Store(true)
			}
		})
	}
	calls.Wait()
	return !failed.Load()
}

func (k *keeper) extend(jobs []*job) (ok bool) {
	lease := k.r.lease
	start := time.Now()
	deadline := start.Add(min(lease/6, k.r.settle))
	done := make(chan struct{})
	batch := make([]*backend.Delivery, 0, len(jobs))
	held := jobs[:0]
	k.mu.Lock()
	for _, j := range jobs {
		if _, still := k.held[j]; still {
			j.extending = done
			held = append(held, j)
			batch = append(batch, j.d)
			// A call that hangs has to fail early enough for the handler to stop while the lease lasts.
			if latest := j.leaseUntil.Add(-lease / 12); latest.Before(deadline) {
				deadline = latest
			}
		}
	}
	k.mu.Unlock()
	if earliest := start.Add(min(lease/12, k.r.settle)); deadline.Before(earliest) {
		deadline = earliest // one whose lease is over already must not take the others' time
	}
	if len(batch) == 0 {
		return true
	}

	ctx, cancel := context.WithDeadline(k.r.serving, deadline)
	err := k.r.sub.Extend(ctx, batch)
	cancel()

	ok = true
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, j := range held {
		j.extending = nil
		switch err := backend.ErrorAt(err, i); {
		case err == nil:
			j.leaseUntil = start.Add(lease)
		case errors.Is(err, backend.ErrLeaseLost):
			k.lose(j, err)
		case errors.Is(err, backend.ErrSettled):
		default:
			ok = false
			// Another consumer may get the message soon: stop while nobody has it.
			if !now.Before(j.leaseUntil.Add(-lease / 6)) {
				k.lose(j, fmt.Errorf("message %q of queue %q: %w: it could not be extended in time: %w", j.d.ID, j.d.Queue, backend.ErrLeaseLost, err))
			}
		}
	}
	close(done)
	return ok
}
