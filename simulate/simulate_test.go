package simulate_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/budget"
	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/simulate"
)

var payments = policy.Policy{
	MaxAttempts: 8,
	Backoff:     policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second},
	Jitter:      policy.FullJitter,
}

func run(t testing.TB, p policy.Policy, s simulate.Scenario) *simulate.Result {
	r, err := simulate.Run(p, s)
	require.NoError(t, err)
	return r
}

func TestWithoutAnOutageEachMessageIsOneCall(t *testing.T) {
	r := run(t, payments, simulate.Scenario{Messages: 1000, Over: 10 * time.Second})
	require.Equal(t, 1000, r.Calls)
	require.Equal(t, 1000, r.Succeeded)
	require.Zero(t, r.DeadLettered)
	require.Len(t, r.Load, 11, "the last ends after the tenth second")
	for _, l := range r.Load[:10] {
		require.InDelta(t, 100, l.Calls, 2, "evenly")
	}
}

// With consumers for all and no other limit the shares are those that the
// analysis computes for one message.
func TestDeadSharesAreThoseOfTheAnalysis(t *testing.T) {
	const messages = 20_000
	outage := 40 * time.Second
	schedule, err := analysis.New(payments, analysis.Conditions{Run: 20 * time.Millisecond})
	require.NoError(t, err)
	survival := schedule.Survival(outage)

	at := run(t, payments, simulate.Scenario{Messages: messages, Consumers: messages, Outage: simulate.Outage{For: outage}})
	require.InDelta(t, 1-survival.AtStart.Value, at.DeadShare(), survival.AtStart.Error+4*0.5/math.Sqrt(messages))

	within := run(t, payments, simulate.Scenario{Messages: messages, Over: outage, Consumers: messages, Outage: simulate.Outage{For: outage}})
	require.InDelta(t, 1-survival.Within.Value, within.DeadShare(), survival.Within.Error+4*0.5/math.Sqrt(messages))
	require.NotEqual(t, at.DeadLettered, within.DeadLettered)
}

// What is computed for one message and what is played with thousands are two ways to one number, whatever the curve, the jitter,
// the maximum age and the broker: within the error that the analysis states, and four standard errors of so many messages.
func TestEveryCurveAndJitterFaresAsTheAnalysisSays(t *testing.T) {
	t.Parallel()
	const messages = 1000
	const s = time.Second
	curves := map[string]policy.Backoff{
		"fixed":       policy.Fixed(3 * s),
		"linear":      policy.Linear{Base: s, Step: 2 * s, Max: 6 * s},
		"exponential": policy.Exponential{Base: s / 2, Max: 8 * s},
		"by 1.5":      policy.Exponential{Base: s, Factor: 1.5},
		"steps":       policy.Steps{0, 4 * s, s, 5 * s},
		"function":    policy.Func(func(n int) time.Duration { return time.Duration(n*n) * s / 4 }),
		"immediate":   policy.Immediate{Attempts: 2, Then: policy.Exponential{Base: s, Max: 20 * s}},
	}
	jitters := []policy.Jitter{
		policy.NoJitter, policy.FullJitter, policy.EqualJitter, policy.DecorrelatedJitter, policy.Proportional(0.3), policy.Additive(0.5),
	}
	brokers := []analysis.Broker{{}, {Limits: backend.Limits{Granularity: s, MaxDelay: 7 * s}}}
	partly := 0 // how often neither all nor none survive
	for name, curve := range curves {
		for i, jitter := range jitters {
			for _, p := range []policy.Policy{
				{MaxAttempts: 6, Backoff: curve, Jitter: jitter},
				{MaxAttempts: 6, Backoff: curve, Jitter: jitter, MaxAge: 12 * s, MinDelay: s / 10},
			} {
				broker := brokers[i%2]
				plan, err := analysis.New(p, analysis.Conditions{Run: simulate.DefaultWork, Broker: broker})
				require.NoError(t, err, name)
				outage := plan.Horizon().Mean * 9 / 10
				want := plan.Survival(outage)
				scenario := simulate.Scenario{Messages: messages, Consumers: messages, Limits: broker.Limits, Outage: simulate.Outage{For: outage}}
				chance := 4 * 0.5 / math.Sqrt(messages)
				alive := 1 - run(t, p, scenario).DeadShare()
				require.InDelta(t, want.AtStart.Value, alive, want.AtStart.Error+chance, "%s, %v jitter, %v", name, jitter.Kind, p.MaxAge)
				scenario.Over = outage
				within := 1 - run(t, p, scenario).DeadShare()
				require.InDelta(t, want.Within.Value, within, want.Within.Error+chance, "%s, %v jitter, %v", name, jitter.Kind, p.MaxAge)
				if alive > 0.05 && alive < 0.95 {
					partly++
				}
			}
		}
	}
	require.Greater(t, partly, len(curves)*len(jitters)/2, "else it would say little")
}

func TestEveryMessageEndsAndEveryCallIsCounted(t *testing.T) {
	for seed := range uint64(5) {
		r := run(t, payments, simulate.Scenario{
			Messages: 3000, Over: time.Minute, Consumers: 7, Capacity: 60, Seed: seed, Work: 100 * time.Millisecond,
			Outage: simulate.Outage{From: 10 * time.Second, For: 20 * time.Second},
		})
		require.Equal(t, 3000, r.Succeeded+r.DeadLettered+r.Discarded)
		calls, down, refused := 0, 0, 0
		for i, l := range r.Load {
			require.Equal(t, time.Duration(i)*time.Second, l.At)
			require.LessOrEqual(t, l.Calls, 7*11, "seven consumers make ten calls a second each")
			require.LessOrEqual(t, l.Calls-l.Down-l.Refused, 60+6, "the capacity and a burst")
			if l.At >= 10*time.Second && l.At < 30*time.Second {
				require.Equal(t, l.Calls, l.Down)
			} else {
				require.Zero(t, l.Down)
			}
			calls, down, refused = calls+l.Calls, down+l.Down, refused+l.Refused
		}
		require.Equal(t, r.Calls, calls)
		require.Equal(t, r.Down, down)
		require.Equal(t, r.Refused, refused)
		require.Equal(t, r.Calls, r.Succeeded+down+refused)
		require.Equal(t, time.Duration(len(r.Load)-1), r.Drained/time.Second)
		require.Zero(t, r.Load[len(r.Load)-1].Backlog)
	}
}

func TestSameSeedSameResult(t *testing.T) {
	s := simulate.Scenario{Messages: 2000, Over: 20 * time.Second, Capacity: 200, Outage: simulate.Outage{From: time.Second, For: 10 * time.Second}, Seed: 7}
	first := run(t, payments, s)
	require.Equal(t, first, run(t, payments, s), "in every field")
	s.Seed++
	require.NotEqual(t, first.Load, run(t, payments, s).Load)
}

// What jitter is for: messages that failed together come back spread.
func TestJitterFlattensThePeak(t *testing.T) {
	s := simulate.Scenario{Messages: 5000, Consumers: 5000, Step: 100 * time.Millisecond, Outage: simulate.Outage{For: 10 * time.Second}}
	plain := payments
	plain.Jitter = policy.NoJitter
	herd, spread := run(t, plain, s), run(t, payments, s)
	require.Equal(t, 5000, herd.Peak, "all of them at once")
	require.Less(t, spread.Peak, 500)
	require.Equal(t, 50_000.0, herd.PeakRate())
	require.Equal(t, 15600*time.Millisecond, herd.PeakAt, "31 times half a second, and five calls that failed")
}

func TestBrokersLimitsHold(t *testing.T) {
	p := policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(300 * time.Millisecond)}
	s := simulate.Scenario{Messages: 1, Outage: simulate.Outage{For: 100 * time.Millisecond}, Step: 100 * time.Millisecond}
	require.Equal(t, 340*time.Millisecond, run(t, p, s).Drained)
	s.Limits = backend.Limits{Granularity: time.Second}
	require.Equal(t, 1040*time.Millisecond, run(t, p, s).Drained)
}

func TestBudgetStretchesWaitsAndGivesNothingUp(t *testing.T) {
	s := simulate.Scenario{Messages: 500, Over: 10 * time.Second, Outage: simulate.Outage{From: time.Second, For: 15 * time.Second}}
	plain := run(t, payments, s)
	s.Budget = func() *budget.Bucket { return new(budget.Bucket) }
	held := run(t, payments, s)
	require.Equal(t, held.Load, run(t, payments, s).Load, "each run has a budget of its own")
	require.Less(t, held.Calls, plain.Calls, "longer waits, fewer calls in the outage")
	require.Less(t, held.DeadLettered, plain.DeadLettered)

	s.Budget = func() *budget.Bucket { return &budget.Bucket{Burst: 1e6} }
	require.Equal(t, plain.Load, run(t, payments, s).Load, "one that is never empty changes nothing")
}

func TestPermanentErrorsEndAtOnce(t *testing.T) {
	s := simulate.Scenario{Messages: 10, Outage: simulate.Outage{For: time.Minute}, Err: policy.Permanent(errors.New("no such card"))}
	r := run(t, payments, s)
	require.Equal(t, 10, r.DeadLettered)
	require.Equal(t, 10, r.Calls)
	s.Err = policy.Discard(errors.New("stale"))
	require.Equal(t, 10, run(t, payments, s).Discarded)
}

func TestWhatCannotBeSimulated(t *testing.T) {
	for text, s := range map[string]simulate.Scenario{
		"Messages":    {Messages: -1},
		"Consumers":   {Consumers: -1},
		"Capacity":    {Capacity: math.NaN()},
		"Over":        {Over: -1},
		"Work":        {Work: -1},
		"Fail":        {Fail: -1},
		"Step":        {Step: 1},
		"Outage.From": {Outage: simulate.Outage{From: -1}},
		"Outage.For":  {Outage: simulate.Outage{For: math.MaxInt64}},
	} {
		_, err := simulate.Run(payments, s)
		require.ErrorContains(t, err, text)
	}
	_, err := simulate.Run(policy.Policy{}, simulate.Scenario{})
	require.ErrorContains(t, err, "MaxAttempts")

	endless := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(time.Minute)}
	_, err = simulate.Run(endless, simulate.Scenario{
		Messages: 1, Step: time.Millisecond, Outage: simulate.Outage{For: 24 * time.Hour},
	})
	require.ErrorContains(t, err, "MaxAttempts or MaxAge")
}

func TestVariantsDifferInTheirJitterOrBudget(t *testing.T) {
	vs := simulate.Variants(payments)
	require.Equal(t, payments, vs[0].Policy)
	require.Len(t, vs, 5)
	seen := make(map[policy.Jitter]bool)
	for _, v := range vs[:4] {
		require.Nil(t, v.Budget)
		require.False(t, seen[v.Policy.Jitter], v.Name)
		seen[v.Policy.Jitter] = true
		v.Policy.Jitter = payments.Jitter
		require.Equal(t, payments, v.Policy)
	}
	require.Equal(t, payments, vs[4].Policy)
	require.NotNil(t, vs[4].Budget)
}

// large is 100,000 messages that meet an outage of 90 seconds.
var large = simulate.Scenario{
	Messages: 100_000, Over: 5 * time.Minute, Consumers: 500, Capacity: 600,
	Outage: simulate.Outage{From: time.Minute, For: 90 * time.Second},
}

func TestHundredThousandMessagesTakeSeconds(t *testing.T) {
	start := time.Now()
	r := run(t, payments, large)
	require.Greater(t, r.Calls, 200_000)
	// BenchmarkHundredThousandMessages tells how long it really takes. The race
	// detector and a busy machine have their share of this.
	require.Less(t, time.Since(start), 30*time.Second)
}

func BenchmarkHundredThousandMessages(b *testing.B) {
	for b.Loop() {
		r := run(b, payments, large)
		b.ReportMetric(float64(r.Calls), "calls")
	}
}

func ExampleRun() {
	for _, v := range simulate.Variants(payments)[:2] {
		r, err := v.Run(simulate.Scenario{
			Messages:  3000, // all at once
			Consumers: 3000,
			Capacity:  400,
			Outage:    simulate.Outage{For: 10 * time.Second},
		})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: %.1f %% dead-lettered, %.0f calls a second at the peak, worked off %s after the outage\n",
			v.Name, 100*r.DeadShare(), r.PeakRate(), analysis.Text(r.AfterOutage()))
	}
	// Output:
	// as it is: 1.3 % dead-lettered, 464 calls a second at the peak, worked off 29.8s after the outage
	// no jitter: 96.0 % dead-lettered, 3000 calls a second at the peak, worked off 51.7s after the outage
}
