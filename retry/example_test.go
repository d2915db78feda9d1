package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/retry"
)

var brief = policy.Policy{
	MaxAttempts: 4,
	Backoff:     policy.Exponential{Base: time.Millisecond, Max: 5 * time.Millisecond},
	Jitter:      policy.FullJitter,
}

// A database that is not up yet.
func ExampleDo() {
	connect := func(ctx context.Context) error {
		n := retry.Attempt(ctx)
		if n < 3 {
			return errors.New("connection refused")
		}
		fmt.Println("connected at attempt", n)
		return nil
	}
	if err := retry.Do(context.Background(), brief, connect); err != nil {
		fmt.Println(err)
	}
	// Output:
	// connected at attempt 3
}

// Responses are told apart by their status, and a Retry-After is kept to.
func ExampleValue() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "1.0842")
	}))
	defer server.Close()

	p := brief
	p.Rules = []policy.Rule{{Name: "refused", Match: classify.Permanent, Action: policy.ActionDeadLetter}}
	rate, err := retry.Value(context.Background(), p, func(ctx context.Context) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			return "", policy.Permanent(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if err := classify.Response(resp); err != nil {
			return "", err
		}
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	})
	fmt.Println(rate, err, "after", requests, "requests")
	// Output:
	// 1.0842 <nil> after 3 requests
}

// The observer sees each failure and what was decided about it.
func ExampleObserve() {
	log := func(_ context.Context, f policy.Failure, d policy.Decision) {
		fmt.Printf("%v: %s\n", f.Err, d.Explain())
	}
	refuse := func(ctx context.Context) error {
		if retry.Attempt(ctx) == 1 {
			return errors.New("connection refused")
		}
		return policy.Permanent(errors.New("card expired"))
	}
	err := retry.Do(context.Background(), brief, refuse, retry.ID("payment-1"), retry.Observe(log))
	fmt.Println(errors.Is(err, policy.ErrPermanent))
	// Output:
	// connection refused: retry in 990.786µs: attempt 1 of 4 failed; exponential backoff 1ms, full jitter from 0s to 1ms
	// card expired: dead-letter: attempt 2 of 4 failed with an error marked permanent
	// true
}

func ExampleError() {
	once := brief
	once.MaxAttempts = 1
	err := retry.Do(context.Background(), once, func(context.Context) error { return io.ErrUnexpectedEOF })

	var gaveUp *retry.Error
	if errors.As(err, &gaveUp) {
		fmt.Println(gaveUp.Reason, gaveUp.Attempt, gaveUp.Err)
	}
	fmt.Println(errors.Is(err, io.ErrUnexpectedEOF))
	// Output:
	// exhausted 1 unexpected EOF
	// true
}
