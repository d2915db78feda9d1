package analysis_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// below is the chance that a sum of independent uniform variables from 0 to
// each width is below x, by inclusion and exclusion, in exact arithmetic:
// the volume of a cube that a plane cuts off.
func below(x int64, widths []int64) float64 {
	n := len(widths)
	sum := new(big.Int)
	for subset := range 1 << n {
		rest, sign := x, int64(1)
		for i, w := range widths {
			if subset>>i&1 == 1 {
				rest, sign = rest-w, -sign
			}
		}
		if rest > 0 {
			term := new(big.Int).Exp(big.NewInt(rest), big.NewInt(int64(n)), nil)
			sum.Add(sum, term.Mul(term, big.NewInt(sign)))
		}
	}
	for i, w := range widths {
		sum.Quo(sum.Mul(sum, big.NewInt(1<<20)), big.NewInt(w*int64(i+1)))
	}
	f, _ := new(big.Rat).SetFrac(sum, new(big.Int).Lsh(big.NewInt(1), uint(20*n))).Float64()
	return f
}

func TestSurvivalIsThatOfTheClosedForm(t *testing.T) {
	s := schedule(t, payments, analysis.Conditions{})
	var widths []int64
	for _, w := range seconds(0.5, 1, 2, 4, 8, 16, 30) {
		widths = append(widths, int64(w))
	}
	for _, outage := range seconds(0.1, 1, 5, 10, 20, 30, 31, 45, 60, 61) {
		got := s.Survival(outage).AtStart
		require.InDelta(t, 1-below(int64(outage), widths), got.Value, got.Error+1e-9, "%v", outage)
		require.Less(t, got.Error, 2e-4)
	}
}

// The mean of the smaller of outage and last attempt, integrated from the
// closed form.
func TestSurvivalWithinIsTheMeanOverArrivals(t *testing.T) {
	s := schedule(t, payments, analysis.Conditions{})
	var widths []int64
	for _, w := range seconds(0.5, 1, 2, 4, 8, 16, 30) {
		widths = append(widths, int64(w))
	}
	const outage, parts = 40 * time.Second, 400
	sum := 0.0
	for i := range parts {
		sum += 1 - below(int64(outage)*int64(2*i+1)/(2*parts), widths)
	}
	got := s.Survival(outage).Within
	require.InDelta(t, sum/parts, got.Value, got.Error+1e-5)
	require.Less(t, got.Error, 2e-4)
}

func anyPolicy(t *rapid.T) policy.Policy {
	duration := func(label string, least, most time.Duration) time.Duration {
		return time.Duration(rapid.Int64Range(int64(least), int64(most)).Draw(t, label))
	}
	var curves func(depth int) policy.Backoff
	curves = func(depth int) policy.Backoff {
		base := duration("base", 1, 10*time.Second)
		kind := rapid.IntRange(0, 4+depth).Draw(t, "curve")
		switch kind {
		case 0:
			return policy.Fixed(base)
		case 1:
			return policy.Linear{Base: base, Step: duration("step", 0, 5*time.Second), Max: base * 4}
		case 2:
			return policy.Exponential{Base: base, Factor: rapid.Float64Range(1.01, 4).Draw(t, "factor"), Max: base * 20}
		case 3:
			steps := policy.Steps{}
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				steps = append(steps, duration("step", 0, 10*time.Second))
			}
			return append(steps, base)
		case 4:
			return policy.Func(func(n int) time.Duration { return base ^ time.Duration(n*n)<<20 })
		default:
			return policy.Immediate{Attempts: rapid.IntRange(0, 3).Draw(t, "immediate"), Then: curves(0)}
		}
	}
	fraction := rapid.Float64Range(0, 1).Draw(t, "fraction")
	p := policy.Policy{
		MaxAttempts: rapid.IntRange(1, 9).Draw(t, "attempts"),
		Backoff:     curves(1),
		Jitter: rapid.SampledFrom([]policy.Jitter{
			policy.NoJitter, policy.FullJitter, policy.EqualJitter, policy.DecorrelatedJitter,
			policy.Proportional(fraction), policy.Additive(fraction),
		}).Draw(t, "jitter"),
	}
	if rapid.Bool().Draw(t, "floor") {
		p.MinDelay = duration("min", 1, time.Second)
	}
	if rapid.Bool().Draw(t, "cap") {
		p.MaxDelay = duration("max", time.Second, 20*time.Second)
	}
	if rapid.Bool().Draw(t, "age") {
		p.MaxAge = duration("maximum age", time.Second, time.Minute)
		if rapid.Bool().Draw(t, "age alone") {
			p.MaxAttempts = 0
		}
	}
	return p
}

// lastAttempts asks Decide, message by message, when the last attempt is.
func lastAttempts(p policy.Policy, c analysis.Conditions, messages int) (last, reached []float64) {
	failure := errors.New("down")
	for m := range messages {
		id, at := fmt.Sprint("m", m), time.Duration(0)
		for n := 1; ; n++ {
			if len(reached) < n {
				reached = append(reached, 0)
			}
			reached[n-1] += 1 / float64(messages)
			d := p.Decide(policy.Failure{Attempt: n, Err: failure, MessageID: id, Age: at + c.Run})
			if d.Action != policy.ActionRetry || n > 2000 {
				break
			}
			at += c.Run + c.Broker.Limits.Applied(d.Delay)
		}
		last = append(last, float64(at))
	}
	return last, reached
}

// What the analysis says of the distribution is what thousands of messages do,
// within the stated error and what chance adds: four times the standard error
// is exceeded once in 16,000.
func TestAnalysisAgreesWithDecisions(t *testing.T) {
	t.Parallel()
	const messages = 2000
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy(t)
		if p.Validate() != nil {
			t.Skip("not valid")
		}
		c := analysis.Conditions{Run: time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "run"))}
		if rapid.Bool().Draw(t, "whole units") {
			c.Broker.Limits = backend.Limits{
				Granularity: rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second}).Draw(t, "unit"),
				MaxDelay:    time.Duration(rapid.IntRange(1, 20).Draw(t, "limit")) * time.Second,
			}
		}
		s := schedule(t, p, c)
		if len(s.Attempts) > 100 {
			t.Skip("thousands of attempts a message")
		}
		last, reached := lastAttempts(p, c, messages)

		outage := time.Duration(rapid.Int64Range(1, int64(s.Attempts[len(s.Attempts)-1].At.Latest)+2).Draw(t, "outage"))
		alive, spent, mean := 0.0, 0.0, 0.0
		for _, at := range last {
			if at >= float64(outage) {
				alive += 1.0 / messages
			}
			spent += min(at/float64(outage), 1) / messages
			mean += at / messages
		}
		// What lies in a range deviates by at most half of it.
		chance := 4 * 0.5 / math.Sqrt(messages)
		got := s.Survival(outage)
		require.InDelta(t, alive, got.AtStart.Value, got.AtStart.Error+chance)
		require.InDelta(t, spent, got.Within.Value, got.Within.Error+chance)
		h := s.Horizon()
		require.InDelta(t, mean+float64(c.Run), float64(h.Mean), float64(h.Error)+chance*float64(h.Latest-h.Earliest)+float64(len(s.Attempts)))
		for _, at := range last {
			require.LessOrEqual(t, float64(h.Earliest-c.Run), at)
			require.GreaterOrEqual(t, float64(h.Latest-c.Run), at)
		}
		for i, share := range reached {
			if i >= len(s.Attempts) {
				require.Less(t, share, 1e-3)
				continue
			}
			require.InDelta(t, share, s.Attempts[i].Reached.Value, s.Attempts[i].Reached.Error+chance, "attempt %d", i+1)
		}
	})
}

// An outage that lasts longer never spares more messages; and the stated errors
// stay what the documentation says they are.
func TestLongerOutagesKillNoFewer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy(t)
		if p.Validate() != nil {
			t.Skip("not valid")
		}
		s := schedule(t, p, analysis.Conditions{})
		if len(s.Attempts) > 100 {
			t.Skip("thousands of attempts a message")
		}
		a := time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "outage"))
		b := a + time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "longer"))
		short, long := s.Survival(a), s.Survival(b)
		require.LessOrEqual(t, long.AtStart.Low(), short.AtStart.High())
		require.LessOrEqual(t, long.Within.Low(), short.Within.High())
		require.LessOrEqual(t, short.AtStart.Low(), short.Within.High())
		if len(s.Attempts) <= 20 {
			require.Less(t, short.Within.Error, 1e-3)
		}
	})
}

func BenchmarkSurvival(b *testing.B) {
	s := schedule(b, payments, analysis.Conditions{})
	for b.Loop() {
		s.Survival(30 * time.Second)
	}
}

func ExampleNew() {
	s, err := analysis.New(payments, analysis.Conditions{})
	if err != nil {
		panic(err)
	}
	for _, a := range s.Attempts {
		fmt.Printf("attempt %d at %v, on average at %v, at the latest at %v\n", a.Number, a.At.Earliest, a.At.Mean, a.At.Latest)
	}
	// Output:
	// attempt 1 at 0s, on average at 0s, at the latest at 0s
	// attempt 2 at 0s, on average at 250ms, at the latest at 500ms
	// attempt 3 at 0s, on average at 750ms, at the latest at 1.5s
	// attempt 4 at 0s, on average at 1.75s, at the latest at 3.5s
	// attempt 5 at 0s, on average at 3.75s, at the latest at 7.5s
	// attempt 6 at 0s, on average at 7.75s, at the latest at 15.5s
	// attempt 7 at 0s, on average at 15.75s, at the latest at 31.5s
	// attempt 8 at 0s, on average at 30.75s, at the latest at 1m1.5s
}

// An outage of 30 seconds, such as a slow deploy of the bank's gateway.
func ExampleSchedule_Survival() {
	s, err := analysis.New(payments, analysis.Conditions{})
	if err != nil {
		panic(err)
	}
	alive := s.Survival(30 * time.Second)
	fmt.Printf("failed first as it began: %.1f %% survive\n", 100*alive.AtStart.Value)
	fmt.Printf("at any time in it: %.1f %% survive\n", 100*alive.Within.Value)
	fmt.Println("certain to 0.1 %:", alive.AtStart.Error < 0.001 && alive.Within.Error < 0.001)
	// Output:
	// failed first as it began: 52.5 % survive
	// at any time in it: 87.1 % survive
	// certain to 0.1 %: true
}

// An outage of a nanosecond has a grid of nanoseconds, of which a wait of
// seconds has more than 32 bits can count.
func TestShortOutageOfLongWaits(t *testing.T) {
	p := policy.Policy{MaxAge: 9 * time.Second, Backoff: policy.Fixed(6 * time.Second), Jitter: policy.DecorrelatedJitter} // 6 to 18 s
	got := schedule(t, p, analysis.Conditions{}).Survival(1).AtStart
	require.InDelta(t, 0.25, got.Value, 1e-8)
	require.LessOrEqual(t, got.Error, 2e-9)
}

// Waits of a few nanoseconds are all counted out: there the grid is exact, and
// so are the shares, unless the maximum age falls within the broker's unit.
func TestFewNanosecondsAreExact(t *testing.T) {
	for _, unit := range []time.Duration{1, 2, 3} {
		for _, age := range []time.Duration{0, 4, 6, 9} {
			p := policy.Policy{MaxAttempts: 4, MaxAge: age, Backoff: policy.Steps{3, 5, 4}, Jitter: policy.FullJitter}
			limits := backend.Limits{Granularity: unit}
			var last []time.Duration
			for a := range time.Duration(4) {
				for b := range time.Duration(6) {
					for c := range time.Duration(5) {
						at := time.Duration(0)
						for _, delay := range []time.Duration{a, b, c} {
							if age > 0 && (at >= age || at+delay > age) {
								break
							}
							at += limits.Applied(delay)
						}
						last = append(last, at)
					}
				}
			}
			s := schedule(t, p, analysis.Conditions{Broker: analysis.Broker{Limits: limits}})
			for outage := time.Duration(1); outage < 18; outage++ {
				alive, spent := 0.0, 0.0
				for _, at := range last {
					if at >= outage {
						alive += 1 / float64(len(last))
					}
					spent += float64(min(at, outage)) / float64(outage) / float64(len(last))
				}
				got := s.Survival(outage)
				require.InDelta(t, alive, got.AtStart.Value, got.AtStart.Error+1e-9, "unit %d, age %d, outage %d", unit, age, outage)
				require.InDelta(t, spent, got.Within.Value, got.Within.Error+1e-9, "unit %d, age %d, outage %d", unit, age, outage)
				if unit == 1 || age == 0 {
					require.Less(t, max(got.AtStart.Error, got.Within.Error), 2e-9)
				}
			}
		}
	}
}
