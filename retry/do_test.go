package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/retry"
)

var errDown = errors.New("connection refused")

// steady waits 1s, 2s, 4s, 8s.
func steady() policy.Policy {
	return policy.Policy{MaxAttempts: 5, Backoff: policy.Exponential{Base: time.Second, Max: time.Minute}}
}

// A script is a function that returns one error after another, and then nil. It notes when it was called, and as what attempt.
type script struct {
	errs     []error
	began    time.Time
	at       []time.Duration
	attempts []int
}

func play(errs ...error) *script { return &script{errs: errs, began: time.Now()} }

func (s *script) call(ctx context.Context) error {
	s.at = append(s.at, time.Since(s.began))
	s.attempts = append(s.attempts, retry.Attempt(ctx))
	if n := len(s.at); n <= len(s.errs) {
		return s.errs[n-1]
	}
	return nil
}

func times(err error, n int) (errs []error) {
	for range n {
		errs = append(errs, err)
	}
	return errs
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestDelaysAreThoseOfThePolicy(t *testing.T) {
	const s = time.Second
	backoff := func(b policy.Backoff) policy.Policy { return policy.Policy{MaxAttempts: 5, Backoff: b} }
	floor := backoff(policy.Fixed(s))
	floor.MinDelay = 3 * s
	hinted := policy.RetryAfter(10*s, errDown)
	for name, tt := range map[string]struct {
		policy policy.Policy
		errs   []error
		at     []time.Duration
	}{
		"no failure":               {steady(), nil, []time.Duration{0}},
		"one failure":              {steady(), times(errDown, 1), []time.Duration{0, s}},
		"success at the last":      {steady(), times(errDown, 4), []time.Duration{0, s, 3 * s, 7 * s, 15 * s}},
		"immediate":                {backoff(policy.Immediate{Attempts: 2, Then: policy.Fixed(s)}), times(errDown, 3), []time.Duration{0, 0, 0, s}},
		"floor":                    {floor, times(errDown, 2), []time.Duration{0, 3 * s, 6 * s}},
		"a hint is a floor":        {steady(), []error{hinted, errDown}, []time.Duration{0, 10 * s, 12 * s}},
		"a lower hint changes not": {steady(), []error{policy.RetryAfter(1, errDown)}, []time.Duration{0, s}},
	} {
		bubble(t, name, func(t *testing.T) {
			fn := play(tt.errs...)
			require.NoError(t, retry.Do(t.Context(), tt.policy, fn.call))
			require.Equal(t, tt.at, fn.at)
			for i, n := range fn.attempts {
				require.Equal(t, i+1, n)
			}
		})
	}
}

func TestHowThePolicyGivesUp(t *testing.T) {
	const s = time.Second
	aged := steady()
	aged.MaxAge = 6 * s // the third retry would come after 7 s
	sleepy := steady()
	sleepy.MaxSnoozes = 2
	ruled := steady()
	ruled.Rules = []policy.Rule{
		{Match: classify.Permanent, Action: policy.ActionDeadLetter},
		{Match: policy.Is(io.EOF), Action: policy.ActionDiscard},
		{Match: policy.Is(io.ErrClosedPipe), MaxAttempts: 2, Backoff: policy.Fixed(time.Minute)},
	}
	once := steady()
	once.MaxAttempts = 1
	invalid := &classify.StatusError{Code: 422}
	snooze := policy.Snooze(s)
	for name, tt := range map[string]struct {
		policy  policy.Policy
		errs    []error
		reason  policy.Reason
		attempt int
		elapsed time.Duration
	}{
		"exhausted":            {steady(), times(errDown, 9), policy.ReasonExhausted, 5, 15 * s},
		"no retry":             {once, times(errDown, 9), policy.ReasonExhausted, 1, 0},
		"permanent":            {steady(), []error{errDown, policy.Permanent(errDown)}, policy.ReasonPermanent, 2, s},
		"permanent, the last":  {once, []error{policy.Permanent(errDown)}, policy.ReasonPermanent, 1, 0},
		"discarded":            {steady(), []error{policy.Discard(errDown)}, policy.ReasonDiscarded, 1, 0},
		"expired":              {aged, times(errDown, 9), policy.ReasonExpired, 3, 3 * s},
		"snoozed too often":    {sleepy, times(snooze, 9), policy.ReasonSnoozeLimit, 1, 2 * s},
		"by rule":              {ruled, []error{errDown, invalid}, policy.ReasonPermanent, 2, s},
		"discarded by rule":    {ruled, []error{io.EOF}, policy.ReasonDiscarded, 1, 0},
		"by a rule's attempts": {ruled, times(io.ErrClosedPipe, 9), policy.ReasonExhausted, 2, time.Minute},
	} {
		bubble(t, name, func(t *testing.T) {
			fn := play(tt.errs...)
			err := retry.Do(t.Context(), tt.policy, fn.call)
			var gaveUp *retry.Error
			require.ErrorAs(t, err, &gaveUp)
			last := tt.errs[len(fn.at)-1]
			require.Equal(t, &retry.Error{Reason: tt.reason, Attempt: tt.attempt, Elapsed: tt.elapsed, Err: last}, gaveUp)
			require.ErrorIs(t, err, last)
			require.Equal(t, fmt.Sprintf("retry: gave up at attempt %d, after %v (%s): %v", tt.attempt, tt.elapsed, tt.reason, last), err.Error())
		})
	}
}

// The time that calls take counts for the maximum age, as a message's handler does.
func TestAgeCountsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policy.Policy{MaxAge: 10 * time.Second, Backoff: policy.Fixed(time.Second)}
		calls := 0
		err := retry.Do(t.Context(), p, func(context.Context) error {
			calls++
			time.Sleep(3 * time.Second)
			return errDown
		})
		var gaveUp *retry.Error
		require.ErrorAs(t, err, &gaveUp)
		require.Equal(t, policy.ReasonExpired, gaveUp.Reason)
		require.Equal(t, 3, calls, "they begin at 0, 4 and 8 s")
		require.Equal(t, 11*time.Second, gaveUp.Elapsed)
	})
}

func TestSnoozesAreNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := steady()
		p.MaxAttempts = 2
		fn := play(policy.Snooze(time.Minute), errDown, policy.Snooze(time.Hour), policy.Snooze(time.Hour))
		require.NoError(t, retry.Do(t.Context(), p, fn.call))
		require.Equal(t, []int{1, 1, 2, 2, 2}, fn.attempts)
		minute, second, hour := time.Minute, time.Second, time.Hour
		require.Equal(t, []time.Duration{0, minute, minute + second, hour + minute + second, 2*hour + minute + second}, fn.at)
	})
}

func TestContextEndsAWait(t *testing.T) {
	called := errors.New("the user went home")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(4*time.Second, func() { cancel(called) })
		fn := play(times(errDown, 9)...)
		err := retry.Do(ctx, steady(), fn.call)
		require.Equal(t, 4*time.Second, time.Since(fn.began), "at once, and not after the wait")
		require.Len(t, fn.at, 3)
		for _, is := range []error{errDown, context.Canceled, called} {
			require.ErrorIs(t, err, is)
		}
		var gaveUp *retry.Error
		require.ErrorAs(t, err, &gaveUp)
		require.Empty(t, gaveUp.Reason)
		require.Equal(t, 3, gaveUp.Attempt)
		require.Equal(t, 4*time.Second, gaveUp.Elapsed)
		require.Equal(t, "retry: gave up at attempt 3, after 4s (context canceled: the user went home): connection refused", err.Error())
	})
}

func TestContextEndsBeforeTheFirstCall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fn := play()
	err := retry.Do(ctx, steady(), fn.call)
	require.Empty(t, fn.at)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "retry: gave up before the first attempt: context canceled", err.Error())
}

// Where the function itself ends with the context there is no other call, not even one without a wait.
func TestContextEndsInACall(t *testing.T) {
	for name, p := range map[string]policy.Policy{
		"with a wait":    steady(),
		"without a wait": {MaxAttempts: 5, Backoff: policy.Immediate{Attempts: 5, Then: policy.Fixed(1)}},
	} {
		bubble(t, name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			calls := 0
			err := retry.Do(ctx, p, func(ctx context.Context) error {
				calls++
				cancel()
				return fmt.Errorf("query: %w", ctx.Err())
			})
			require.Equal(t, 1, calls)
			require.EqualError(t, err, "retry: gave up at attempt 1, after 0s (context canceled): query: context canceled")
		})
	}
}

// A success and a verdict of the policy hold although the context has ended meanwhile.
func TestContextDoesNotOverruleAnEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, retry.Do(ctx, steady(), func(context.Context) error {
		cancel()
		return nil
	}))

	ctx, cancel = context.WithCancel(t.Context())
	err := retry.Do(ctx, steady(), func(context.Context) error {
		cancel()
		return policy.Permanent(errDown)
	})
	require.NotErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "permanent")
}

func TestDeadlineBeforeTheNextCallIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		fn := play(times(errDown, 9)...)
		err := retry.Do(ctx, steady(), fn.call)
		require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second}, fn.at, "the next would come after 7 s")
		require.Equal(t, 3*time.Second, time.Since(fn.began))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errDown)
		require.NoError(t, ctx.Err())
	})
}

// A call that would begin as the context ends does not begin.
func TestDeadlineAtTheNextCallIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		fn := play(times(errDown, 9)...)
		require.ErrorIs(t, retry.Do(ctx, steady(), fn.call), context.DeadlineExceeded)
		require.Equal(t, []time.Duration{0, time.Second}, fn.at)
		require.Equal(t, time.Second, time.Since(fn.began))
	})
}

// What ended the context is told, not what would have.
func TestCancellationBeforeADeadlineIsACancellation(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
	err := retry.Do(ctx, steady(), func(context.Context) error {
		cancel()
		return errDown
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

// A deadline of an attempt's own is a failure like another.
func TestDeadlineOfOneAttemptIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		err := retry.Do(t.Context(), steady(), func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			attempts = retry.Attempt(ctx)
			if attempts == 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		require.NoError(t, err)
		require.Equal(t, 3, attempts)
	})
}

func TestInvalidPolicyIsRefusedBeforeTheFirstCall(t *testing.T) {
	fn := play()
	err := retry.Do(t.Context(), policy.Policy{MaxAttempts: -1}, fn.call)
	require.Empty(t, fn.at)
	var invalid *policy.ValidationError
	require.ErrorAs(t, err, &invalid)
	require.ErrorContains(t, err, "retry: policy: MaxAttempts is -1")

	require.ErrorContains(t, retry.Do(t.Context(), steady(), nil), "want a function")
	_, err = retry.Value[int](t.Context(), steady(), nil)
	require.ErrorContains(t, err, "want a function")
}

func TestPanicPassesThrough(t *testing.T) {
	calls := 0
	require.PanicsWithValue(t, "boom", func() {
		_ = retry.Do(t.Context(), steady(), func(context.Context) error {
			calls++
			panic("boom")
		})
	})
	require.Equal(t, 1, calls)

	ended := make(chan int)
	go func() {
		defer func() { ended <- calls }()
		_ = retry.Do(t.Context(), steady(), func(context.Context) error {
			calls++
			runtime.Goexit()
			return nil
		})
		calls = -1
	}()
	require.Equal(t, 2, <-ended)
}

func TestValueIsThatOfTheLastCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := func(good int) func(context.Context) (string, error) {
			return func(ctx context.Context) (string, error) {
				n := retry.Attempt(ctx)
				if n < good {
					return fmt.Sprint("answer ", n), errDown
				}
				return fmt.Sprint("answer ", n), nil
			}
		}
		value, err := retry.Value(t.Context(), steady(), answer(3))
		require.NoError(t, err)
		require.Equal(t, "answer 3", value)

		value, err = retry.Value(t.Context(), steady(), answer(9))
		require.ErrorIs(t, err, errDown)
		require.Equal(t, "answer 5", value)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		value, err = retry.Value(ctx, steady(), answer(1))
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, value)
	})
}

// What is observed is what the policy was asked and answered: it can be asked again.
func TestObserverIsToldOfEachFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := steady()
		p.Jitter = policy.FullJitter
		type seen struct {
			f  policy.Failure
			d  policy.Decision
			at time.Duration
		}
		var all []seen
		fn := play(policy.Snooze(time.Minute), errDown, policy.RetryAfter(time.Hour, errDown), policy.Permanent(errDown))
		err := retry.Do(t.Context(), p, fn.call, retry.ID("call-1"), retry.Observe(func(ctx context.Context, f policy.Failure, d policy.Decision) {
			require.Equal(t, t.Context(), ctx)
			all = append(all, seen{f, d, time.Since(fn.began)})
		}))
		require.Error(t, err)
		require.Len(t, all, 4)
		for i, reason := range []policy.Reason{policy.ReasonSnoozed, policy.ReasonError, policy.ReasonRetryAfter, policy.ReasonPermanent} {
			s := all[i]
			require.Equal(t, reason, s.d.Reason)
			require.Equal(t, p.Decide(s.f), s.d)
			require.Equal(t, fn.errs[i], s.f.Err)
			require.Equal(t, "call-1", s.f.MessageID)
			require.Equal(t, fn.at[i], s.at, "before the wait")
			require.Equal(t, fn.at[i], s.f.Age)
			require.Equal(t, fn.attempts[i], s.f.Attempt)
			require.Equal(t, min(i, 1), s.f.Snoozes)
			if i < 3 {
				require.Equal(t, fn.at[i]+s.d.Delay, fn.at[i+1], "the wait is exactly the delay that was decided")
			}
		}
	})
}

// Calls that fail together do not retry together; those with one identity do, which a test can use.
func TestEachDoHasAnIdentityOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := steady()
		p.Jitter = policy.FullJitter
		delay := func(opts ...retry.Option) (first time.Duration) {
			fn := play(errDown, errDown)
			id := ""
			opts = append(opts, retry.Observe(func(_ context.Context, f policy.Failure, _ policy.Decision) {
				require.NotEmpty(t, f.MessageID)
				require.True(t, id == "" || id == f.MessageID, "an identity lasts as long as its Do")
				id = f.MessageID
			}))
			require.NoError(t, retry.Do(t.Context(), p, fn.call, opts...))
			return fn.at[1]
		}
		seen := make(map[time.Duration]bool)
		for range 100 {
			seen[delay()] = true
			seen[delay(retry.ID(""))] = true
		}
		require.Greater(t, len(seen), 190)

		require.Equal(t, delay(retry.ID("a")), delay(retry.ID("a")))
		require.NotEqual(t, delay(retry.ID("a")), delay(retry.ID("b")))
		require.Equal(t, delay(retry.ID("b")), delay(retry.ID("a"), retry.ID("b")), "the last one counts")

		p.Rand = policy.NewRand(rand.NewPCG(1, 2))
		random := delay(retry.ID("a"))
		p.Rand = policy.NewRand(rand.NewPCG(1, 2))
		require.Equal(t, random, delay(retry.ID("b")), "a random source of the policy is drawn from instead")
	})
}

// A policy further out sees the marks of the last error: a handler can try in the process, and leave the rest to its queue.
func TestMarksReachThePolicyFurtherOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Minute)}
		run := func(err error) (calls int, ended error) {
			ended = retry.Do(t.Context(), outer, func(ctx context.Context) error {
				return retry.Do(ctx, steady(), func(ctx context.Context) error {
					calls++
					require.Equal(t, (calls-1)%5+1, retry.Attempt(ctx), "that of the inner Do")
					return err
				})
			})
			return calls, ended
		}
		calls, err := run(policy.Permanent(errDown))
		require.Equal(t, 1, calls)
		require.ErrorIs(t, err, policy.ErrPermanent)
		calls, err = run(errDown)
		require.Equal(t, 15, calls, "what the inner policy gave up is no more permanent than its cause")
		require.NotErrorIs(t, err, policy.ErrPermanent)

		hint, ok := policy.Hint(&retry.Error{Attempt: 1, Err: policy.RetryAfter(time.Hour, errDown)})
		require.True(t, ok)
		require.Equal(t, time.Hour, hint)
	})
}

func TestTheLastObserverCounts(t *testing.T) {
	told := ""
	tell := func(name string) retry.Option {
		return retry.Observe(func(context.Context, policy.Failure, policy.Decision) { told += name })
	}
	require.Error(t, retry.Do(t.Context(), steady(), play(policy.Permanent(errDown)).call, tell("first"), tell("last")))
	require.Equal(t, "last", told)
}

func TestAttemptWithoutDo(t *testing.T) {
	require.Zero(t, retry.Attempt(t.Context()))
}
