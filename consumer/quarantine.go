package consumer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// quarantine keeps a message that takes its consumer down from taking others with it. A crash is a lapse for all that is
// held at that moment, and the broker cannot tell which message it was. So one that has used up half of the lapses that its
// policy allows is run alone: nothing else is received, what has not started is released, and what runs is waited for.
// The innocent among the suspects are acked then, and the guilty one lapses by itself.
//
// Where a release is charged, as a receive or otherwise, none of this is done.
//
// Both waits, for the handlers that run and for the suspect's own, end after the length of a lease, so that a suspect that
// takes its time costs the others no more than that.
type quarantine struct {
	r *run

	mu    sync.Mutex
	over  chan struct{}   // closed when the suspect is done with; nil while there is none
	calls context.Context // of the calls of Receive; ends when a suspect comes
	stop  context.CancelFunc
}

func newQuarantine(r *run) *quarantine {
	q := &quarantine{r: r}
	q.calls, q.stop = context.WithCancel(r.receiving)
	return q
}

// suspect reports whether j has lapsed so often that it must run alone.
func (q *quarantine) suspect(j *job) bool {
	limits := q.r.limits
	if q.r.room.size == 1 || limits.ReleaseCharged || limits.CountsReceives || j.d.DeadLetterWaits > 0 || j.d.Lapses == 0 {
		return false
	}
	limit := j.govern().lapseLimit()
	if limit == policy.Unlimited {
		limit = policy.DefaultMaxLapses
	} else if j.d.Lapses > limit {
		return false // it does not run at all
	}
	return j.d.Lapses >= (limit+1)/2
}

// pass waits while there is a suspect, and returns the context for a call of Receive. It returns nil when the consumer
// shuts down.
func (q *quarantine) pass() context.Context {
	for {
		q.mu.Lock()
		calls, over := q.calls, q.over
		q.mu.Unlock()
		if q.r.receiving.Err() != nil {
			return nil
		}
		if over == nil {
			return calls
		}
		select {
		case <-over:
		case <-q.r.receiving.Done():
		}
	}
}

// sift takes what was received together, releases what must not run beside a suspect, and returns what may start.
func (q *quarantine) sift(jobs []*job) (start []*job) {
	// Before the lock is taken: which policy governs a delivery the user's own function says.
	var suspect *job
	if i := slices.IndexFunc(jobs, q.suspect); i >= 0 {
		suspect = jobs[i]
	}
	q.mu.Lock()
	busy := q.over != nil
	switch {
	case busy:
		suspect = nil
	case suspect != nil:
		q.over = make(chan struct{})
		q.stop()
	}
	q.mu.Unlock()
	if suspect == nil && !busy {
		return jobs
	}
	for _, j := range jobs {
		if j != suspect {
			j.release()
		}
	}
	if suspect != nil {
		q.r.dispatch.withdraw()
		q.r.service.Go(func() { q.hold(suspect) })
	}
	return nil
}

// hold runs the suspect.
func (q *quarantine) hold(j *job) {
	r := q.r
	r.logger.WarnContext(r.base, "redeliver: a message has lapsed often and is run alone", "queue", r.name, "message_id", j.d.ID, "lapses", j.d.Lapses)
	patience := time.NewTimer(r.lease)
	defer patience.Stop()
	defer q.lift()
	select {
	case <-r.room.atMost(1):
	case <-patience.C:
	case <-r.receiving.Done():
		j.release()
		return
	}
	ended := j.watch()
	r.dispatch.add([]*job{j})
	patience.Reset(r.lease)
	select {
	case <-ended:
	case <-patience.C:
	case <-r.receiving.Done():
	}
}

// lift lets the others in again.
func (q *quarantine) lift() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls, q.stop = context.WithCancel(q.r.receiving)
	close(q.over)
	q.over = nil
}
