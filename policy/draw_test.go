package policy_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
)

// TestMain is also the child process that prints its decisions.
func TestMain(m *testing.M) {
	switch os.Getenv("POLICY_TEST_CHILD") {
	case "":
		os.Exit(m.Run())
	case "hash":
		printDecisions(payments)
	case "seed":
		p := payments
		p.Rand = policy.NewRand(rand.NewPCG(1, 2))
		printDecisions(p)
	}
}

func printDecisions(p policy.Policy) {
	for i := range 100 {
		d := p.Decide(policy.Failure{Attempt: 1 + i%7, Err: errDown, MessageID: fmt.Sprint("message ", i)})
		fmt.Println(d.Action, int64(d.Delay), d.Reason, d.Explain())
	}
}

func TestTwoProcessesDecideTheSame(t *testing.T) {
	child := func(kind string) string {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "POLICY_TEST_CHILD="+kind, "GORACE=atexit_sleep_ms=0")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, stderr.String())
		require.NotEmpty(t, out)
		return string(out)
	}
	require.Equal(t, child("hash"), child("hash"))
	require.Equal(t, child("seed"), child("seed"))
	require.NotEqual(t, child("hash"), child("seed"))
}

// The draw is part of the contract: these delays must be the same in every
// version, on every architecture. They come from another implementation of
// what the package comment says.
func TestDrawsArePinned(t *testing.T) {
	curve := policy.Exponential{Base: time.Second, Factor: 1.7}
	for _, tt := range []struct {
		id      string
		attempt int
		age     time.Duration
		jitter  policy.Jitter
		want    time.Duration
	}{
		{"", 1, 0, policy.FullJitter, 984189060},
		{"", 1, 0, policy.EqualJitter, 992094530},
		{"", 1, 123456789, policy.FullJitter, 667861334},
		{"", 1, 123456789, policy.Proportional(0.15), 1050358400},
		{"a", 1, 0, policy.FullJitter, 806977321},
		{"a", 1, 0, policy.Additive(0.25), 1201744331},
		{"a", 2, 0, policy.FullJitter, 708212725},
		{"a", 2, 0, policy.DecorrelatedJitter, 1833191441},
		{"order-1", 1, 0, policy.FullJitter, 135672076},
		{"order-1", 1, 0, policy.EqualJitter, 567836038},
		{"order-2", 1, 0, policy.FullJitter, 919704703},
		{"order-2", 1, 0, policy.Proportional(0.15), 1125911411},
		{"order-12", 3, 0, policy.FullJitter, 2886821248},
		{"order-12", 3, 0, policy.Additive(0.25), 3611705312},
		{"héllo\x00", 5, 0, policy.FullJitter, 3519210197},
		{"héllo\x00", 5, 0, policy.Additive(0.25), 9231902549},
		{someID, 1, 0, policy.FullJitter, 379889445},
		{someID, 1, 0, policy.DecorrelatedJitter, 1759778891},
		{someID, 8, 0, policy.FullJitter, 23122956750},
		{someID, 8, 0, policy.EqualJitter, 32078412025},
		{someID, math.MaxInt32, 0, policy.FullJitter, 7712174319784063003},
		{someID, math.MaxInt32, 0, policy.Proportional(0.15), 8829146545445024653},
	} {
		p := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: curve, Jitter: tt.jitter}
		d := p.Decide(policy.Failure{Attempt: tt.attempt, MessageID: tt.id, Age: tt.age})
		require.Equal(t, tt.want, d.Delay, "%+v", tt)
	}
}

func TestMessagesSpreadEvenly(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Fixed(1000), Jitter: policy.FullJitter}
	uuids := rand.New(rand.NewPCG(7, 7))
	for name, id := range map[string]func(i int) string{
		"numbers":          func(i int) string { return fmt.Sprint(i) },
		"padded numbers":   func(i int) string { return fmt.Sprintf("order-%012d", i) },
		"one letter first": func(i int) string { return fmt.Sprintf("%08x-0000-7000-8000-000000000000", i) },
		"binary":           func(i int) string { return string([]byte{0, 0, byte(i >> 8), byte(i)}) },
		"random":           func(int) string { return fmt.Sprintf("%016x%016x", uuids.Uint64(), uuids.Uint64()) },
		"lengths":          func(i int) string { return string(bytes.Repeat([]byte{0}, i+1)) },
	} {
		for _, n := range []int{1, 2, 50} {
			const messages, buckets = 5000, 50
			count := make([]float64, buckets)
			for i := range messages {
				d := p.Decide(policy.Failure{Attempt: n, MessageID: id(i)}).Delay
				count[min(int(d)*buckets/1001, buckets-1)]++
			}
			chi2 := 0.0
			for _, c := range count {
				chi2 += (c - messages/buckets) * (c - messages/buckets) / (messages / buckets)
			}
			// With 49 degrees of freedom chance exceeds 95 once in 10,000 times.
			require.Less(t, chi2, 95.0, "%s, attempt %d", name, n)
		}
	}
}

func TestAttemptsOfAMessageAreIndependent(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Fixed(1 << 40), Jitter: policy.FullJitter}
	for _, step := range []int{1, 2, 7} {
		first, second := measure(p, policy.Failure{Attempt: 1}, 5000), measure(p, policy.Failure{Attempt: 1 + step}, 5000)
		var covariance float64
		for i := range first.delays {
			covariance += (float64(first.delays[i]) - first.mean) * (float64(second.delays[i]) - second.mean)
		}
		require.InDelta(t, 0, covariance/5000/first.sd/second.sd, 0.05)
	}
}

func TestEmptyIDsSpreadByAge(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Fixed(time.Hour), Jitter: policy.FullJitter}
	seen := map[time.Duration]bool{}
	for age := range 1000 {
		seen[p.Decide(policy.Failure{Attempt: 1, Age: time.Duration(age)}).Delay] = true
	}
	require.Len(t, seen, 1000)

	a := p.Decide(policy.Failure{Attempt: 1, MessageID: "m", Age: time.Second})
	b := p.Decide(policy.Failure{Attempt: 1, MessageID: "m", Age: time.Minute})
	require.Equal(t, a, b, "with an ID the age plays no part")
}

func TestBothEndsOfARangeAreDrawn(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Fixed(2), Jitter: policy.FullJitter}
	count := map[time.Duration]int{}
	for _, d := range measure(p, policy.Failure{Attempt: 1}, 3000).delays {
		count[d]++
	}
	require.Len(t, count, 3)
	for d := range time.Duration(3) {
		require.InDelta(t, 1000, count[d], 100)
	}
}

func TestOneValueServesManyGoroutines(t *testing.T) {
	hashed, drawn := payments, payments
	drawn.Rand = policy.NewRand(rand.NewPCG(1, 2))
	wrapped := fmt.Errorf("charge: %w", policy.RetryAfter(time.Second, errors.New("503")))
	want := hashed.Decide(policy.Failure{Attempt: 1, Err: wrapped, MessageID: "b"})

	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for g := range 64 {
		wg.Go(func() {
			for i := range 2000 {
				hashed.Decide(policy.Failure{Attempt: math.MaxInt - g, Err: wrapped, MessageID: "a"})
				got := hashed.Decide(policy.Failure{Attempt: 1, Err: wrapped, MessageID: "b"})
				d := drawn.Decide(policy.Failure{Attempt: 1 + i%7, MessageID: "c"})
				if got != want || d.Delay < 0 || d.Delay > 30*time.Second {
					errs <- fmt.Errorf("%+v, %+v", got, d)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	plain := errors.New("connection refused")
	for name, f := range map[string]policy.Failure{
		"plain":         {Attempt: 3, Err: plain, MessageID: someID},
		"wrapped twice": {Attempt: 3, Err: fmt.Errorf("a: %w", fmt.Errorf("b: %w", plain)), MessageID: someID},
		"joined":        {Attempt: 3, Err: errors.Join(plain, plain), MessageID: someID},
		"hint":          {Attempt: 3, Err: fmt.Errorf("a: %w", policy.RetryAfter(time.Minute, plain)), MessageID: someID},
		"permanent":     {Attempt: 3, Err: fmt.Errorf("a: %w", policy.Permanent(plain)), MessageID: someID},
		"snooze":        {Attempt: 3, Err: policy.Snooze(time.Minute), MessageID: someID},
		"last":          {Attempt: 8, Err: plain, MessageID: someID},
		"no error":      {Attempt: 3, MessageID: someID},
	} {
		require.Zero(t, testing.AllocsPerRun(100, func() { sink = payments.Decide(f) }), name)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { sink, _ = payments.Admit(policy.Receipt{Attempt: 9}) }))
}
