// Package budget bounds how much of the load on a dependency is retries, over all messages together.
//
// A policy looks at one message at a time. When a dependency goes down, every message that meets it is retried, each as its
// policy says, and together they are a load that the dependency has never seen, just when it comes back. A Bucket of tokens is
// shared by all: a retry takes a token, a success puts a part of one in, and while there is none, the waits of retries are
// stretched. Nothing is given up for it: a budget changes when a message is retried, never whether.
//
// # In the manner of the AWS SDKs
//
// The numbers are those of the retry quota of the AWS SDKs, in which a retry costs 5 of 500 tokens and a success gives 1 back: a
// hundred retries at once, and in the long run one for five successes. They are constants of
// https://pkg.go.dev/github.com/aws/aws-sdk-go-v2/aws/retry: DefaultRetryRateTokens, DefaultRetryCost, DefaultNoRetryIncrement.
//
// Two things differ, since here a retry is no call that somebody waits for. The SDKs refuse the retry where the quota is used up;
// a message has nobody to tell, so it waits longer instead. And they give a retry's tokens back when it succeeds, and take twice as
// many for a timeout; here each success counts for the same and each retry costs the same, so that Share is what it says, the share
// of retries for each success, also while a crowd of retries succeeds.
package budget

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// Defaults of the fields of a Bucket that are left zero.
const (
	DefaultShare   = 0.2
	DefaultBurst   = 100
	DefaultStretch = 4
)

// least is what a shorter wait counts as when it is stretched: 4 times nothing, after an immediate retry, would be nothing.
const least = 100 * time.Millisecond

// A Bucket is a budget of retries. Set the fields, or none, before its first use, and share it by its address, among all
// consumers in a process whose messages use the same dependency. It is safe for concurrent use, reads no clock, and is full at
// first. It must not be copied.
type Bucket struct {
	// Share is how many tokens a success puts in: how many retries there may be for each success in the long run. The
	// default is DefaultShare.
	Share float64

	// Burst is how many tokens there are at first, and at most. The default is DefaultBurst.
	Burst float64

	// Stretch is how many times as long a wait may get while there are no tokens. The default is DefaultStretch.
	Stretch float64

	mu    sync.Mutex
	spent float64 // of Burst
}

// Validate finds a Share or Burst that is not positive, and a Stretch that is not above 1, unless they are 0; all at once.
func (b *Bucket) Validate() error {
	var faults []error
	for _, f := range []struct {
		field        string
		value, above float64
	}{{"Share", b.Share, 0}, {"Burst", b.Burst, 0}, {"Stretch", b.Stretch, 1}} {
		if f.value != 0 && (!(f.value > f.above) || math.IsInf(f.value, 0)) {
			faults = append(faults, fmt.Errorf("budget: %s is %v: want a number above %v, or 0 for the default", f.field, f.value, f.above))
		}
	}
	if 0 < b.Burst && b.Burst < 1 {
		faults = append(faults, fmt.Errorf("budget: Burst is %v: want 1 or more, as a retry takes a whole token", b.Burst))
	}
	return errors.Join(faults...)
}

// Succeeded tells of a success.
func (b *Bucket) Succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(b.spent-orDefault(b.Share, DefaultShare), 0)
}

// A Retry is one that a policy has decided on.
type Retry struct {
	MessageID string        // with Attempt, what the spread is drawn from
	Attempt   int           // the one that failed
	Wait      time.Duration // what the policy wants
	Left      time.Duration // until the message is too old for its policy; 0 is no limit
	Hold      time.Duration // the longest that the broker can hold; 0 is no limit
}

// most is how long the wait may get. Stretching uses up no more than half of the time that the wait leaves, so that no message is
// too old for it alone.
func (r *Retry) most() time.Duration {
	most := time.Duration(math.MaxInt64)
	if r.Left > 0 {
		most = r.Wait + (r.Left-r.Wait)/2
	}
	if r.Hold > 0 {
		most = min(most, r.Hold)
	}
	return most
}

// Spend takes a token for a retry and returns how long it is to wait: Wait, or while there are no tokens a longer time. That is
// drawn evenly from between half of Stretch times Wait and the whole of it, so that messages that failed together and had the same
// wait do not come back together. A Wait below 100 ms counts as 100 ms. The result is never less than Wait; it is at most Hold, and
// uses up at most half of what Wait leaves of Left. The same retry is drawn the same each time.
func (b *Bucket) Spend(r Retry) time.Duration {
	if b.take() {
		return r.Wait
	}
	longest := min(b.Longest(r.Wait), r.most())
	if longest <= r.Wait {
		return r.Wait
	}
	spread := policy.Policy{
		MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(longest), Jitter: policy.EqualJitter, MinDelay: r.Wait,
	}
	return spread.Decide(policy.Failure{Attempt: r.Attempt, MessageID: r.MessageID}).Delay
}

// Longest returns how long Spend may make a wait.
func (b *Bucket) Longest(wait time.Duration) time.Duration {
	const forever = math.MaxInt64
	stretched := float64(max(wait, least)) * orDefault(b.Stretch, DefaultStretch)
	if stretched >= forever {
		return forever
	}
	return max(time.Duration(stretched), wait)
}

func (b *Bucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// In fifths of a token the sums of what successes put in are a little off a whole.
	const rounding = 1e-9
	if b.spent+1 > orDefault(b.Burst, DefaultBurst)+rounding {
		return false
	}
	b.spent++
	return true
}

func orDefault(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}
