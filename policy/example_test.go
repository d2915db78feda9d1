package policy_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// A message whose handler keeps failing, from the first attempt to the last.
func Example() {
	orders := policy.Policy{
		MaxAttempts: 4,
		Backoff:     policy.Exponential{Base: 500 * time.Millisecond},
	}
	if err := orders.Validate(); err != nil {
		panic(err)
	}
	for attempt := 1; ; attempt++ {
		d := orders.Decide(policy.Failure{Attempt: attempt, Err: errors.New("connection refused"), MessageID: "order-17"})
		fmt.Println(d.Action, d.Delay, d.Reason)
		if d.Action != policy.ActionRetry {
			break
		}
	}
	// Output:
	// retry 500ms error
	// retry 1s error
	// retry 2s error
	// dead-letter 0s exhausted
}

// Jitter is drawn from the message ID and the attempt: a decision can be
// reproduced, and different messages still spread.
func ExamplePolicy_Decide() {
	payments := policy.Policy{
		MaxAttempts: 8,
		Backoff:     policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second},
		Jitter:      policy.FullJitter,
	}
	for _, id := range []string{"payment-1", "payment-2", "payment-1"} {
		d := payments.Decide(policy.Failure{Attempt: 7, Err: errors.New("502 Bad Gateway"), MessageID: id})
		fmt.Println(id, d.Delay.Round(time.Millisecond))
	}
	// Output:
	// payment-1 15.938s
	// payment-2 14.721s
	// payment-1 15.938s
}

// A message that crashes its consumers never fails. Its lapses end it.
func ExamplePolicy_Admit() {
	p := policy.Policy{MaxAttempts: 5, MaxLapses: 2, Backoff: policy.Fixed(time.Second)}
	for lapses := range 4 {
		d, ok := p.Admit(policy.Receipt{Attempt: 1, Lapses: lapses})
		fmt.Println(lapses, ok, d.Explain())
	}
	// Output:
	// 0 true none
	// 1 true none
	// 2 true none
	// 3 false dead-letter: 3 deliveries ended without an outcome, at most 2 may
}

// Every fault is reported, with the field that it is in.
func ExamplePolicy_Validate() {
	p := policy.Policy{
		Name:        "orders",
		MaxAttempts: 5,
		Backoff:     policy.Exponential{Base: time.Minute, Factor: 0.5, Max: time.Second},
	}
	var invalid *policy.ValidationError
	if errors.As(p.Validate(), &invalid) {
		for _, fault := range invalid.Faults {
			fmt.Println(fault)
		}
	}
	// Output:
	// Backoff.Factor is 0.5: want a number of 1 or more; 0 is 2
	// Backoff.Max is 1s: want at least Base, which is 1m0s
}

func ExampleDecision_Explain() {
	p := policy.Policy{MaxAttempts: 3, Backoff: policy.Steps{time.Second, time.Minute}}
	err := errors.New("connection refused")
	fmt.Println(p.Decide(policy.Failure{Attempt: 2, Err: err}).Explain())
	fmt.Println(p.Decide(policy.Failure{Attempt: 3, Err: err}).Explain())
	// Output:
	// retry in 1m0s: attempt 2 of 3 failed; backoff by steps 1m0s
	// dead-letter: attempt 3 of 3 failed, the last
}

// No retry makes a malformed order well-formed.
func ExamplePermanent() {
	p := policy.Policy{MaxAttempts: 5, Backoff: policy.Fixed(time.Second)}
	cause := errors.New("order without a customer")
	err := fmt.Errorf("handle: %w", policy.Permanent(cause))

	d := p.Decide(policy.Failure{Attempt: 1, Err: err})
	fmt.Println(d.Action, d.Reason)
	fmt.Println(err, errors.Is(err, cause), errors.Is(err, policy.ErrPermanent))
	// Output:
	// dead-letter permanent
	// handle: order without a customer true true
}

// What a server asks for is a lower bound of the delay.
func ExampleRetryAfter() {
	p := policy.Policy{MaxAttempts: 5, Backoff: policy.Exponential{Base: time.Second}}
	err := policy.RetryAfter(10*time.Second, errors.New("429 Too Many Requests"))
	for _, attempt := range []int{1, 4} {
		fmt.Println(p.Decide(policy.Failure{Attempt: attempt, Err: err}).Delay)
	}
	p.MaxAttempts = 6
	fmt.Println(p.Decide(policy.Failure{Attempt: 5, Err: err}).Delay)
	// Output:
	// 10s
	// 10s
	// 16s
}

// The handler waits for something that has not happened yet.
func ExampleSnooze() {
	p := policy.Policy{MaxAttempts: 5, Backoff: policy.Fixed(time.Second)}
	d := p.Decide(policy.Failure{Attempt: 1, Err: policy.Snooze(10 * time.Minute)})
	fmt.Println(d.Action, d.Delay, d.Reason, d.Uncharged)
	// Output:
	// retry 10m0s snoozed true
}

func ExampleParseRetryAfter() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, header := range []string{"120", "Sun, 01 Mar 2026 12:00:42 GMT", "soon"} {
		fmt.Println(policy.ParseRetryAfter(header, now))
	}
	// Output:
	// 2m0s true
	// 42s true
	// 0s false
}

// The first two retries need not wait: most glitches are over by then.
func ExampleImmediate() {
	p := policy.Policy{
		MaxAttempts: 6,
		Backoff:     policy.Immediate{Attempts: 2, Then: policy.Linear{Base: time.Second, Step: 5 * time.Second}},
	}
	for attempt := 1; attempt < p.MaxAttempts; attempt++ {
		fmt.Println(p.Decide(policy.Failure{Attempt: attempt}).Delay)
	}
	// Output:
	// 0s
	// 0s
	// 1s
	// 6s
	// 11s
}
