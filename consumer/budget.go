package consumer

import (
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/budget"
	"github.com/redeliver/redeliver/policy"
)

// ration asks the budget how long a retry waits that was decided on at that age of the message.
func (r *run) ration(d *backend.Delivery, p *policy.Policy, wait, age time.Duration) time.Duration {
	if r.c.Budget == nil {
		return wait
	}
	return r.c.Budget.Spend(budget.Retry{
		MessageID: d.ID, Attempt: d.Attempt, Wait: wait, Left: max(p.MaxAge-age, 0), Hold: r.limits.MaxDelay,
	})
}

// longestWait is how long a backoff of that length may be made by the budget, as far as the broker can hold it.
func (c *Consumer) longestWait(backoff time.Duration, limits backend.Limits) time.Duration {
	if c.Budget == nil {
		return backoff
	}
	stretched := c.Budget.Longest(backoff)
	if limits.MaxDelay > 0 {
		stretched = min(stretched, limits.MaxDelay)
	}
	return max(backoff, stretched)
}
