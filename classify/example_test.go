package classify_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/policy"
)

// A gateway that asks for patience gets it, and an order that it refuses is not sent again.
func Example() {
	p := policy.Policy{
		MaxAttempts: 5,
		Backoff:     policy.Fixed(time.Second),
		Rules: []policy.Rule{
			{Name: "throttled", Match: classify.Throttled, MaxAttempts: 20, Backoff: policy.Fixed(time.Minute)},
			{Name: "invalid", Match: classify.Permanent, Action: policy.ActionDeadLetter},
		},
	}
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusUnprocessableEntity} {
		err := classify.Response(&http.Response{StatusCode: status})
		fmt.Println(p.Decide(policy.Failure{Attempt: 3, Err: err}).Explain())
	}
	// Output:
	// retry in 1s: attempt 3 of 5 failed; fixed backoff 1s
	// retry in 1m0s: attempt 3 of 20 failed; fixed backoff 1m0s; by rule throttled
	// dead-letter: attempt 3 of 5 failed; by rule invalid
}

func ExampleOf() {
	fmt.Println(classify.Of(&classify.StatusError{Code: 429}))
	// Output:
	// [http-429 http-4xx http throttled transient]
}
