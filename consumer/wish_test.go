package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func wishing(id string, headers map[string]string) backend.Message {
	return backend.Message{ID: id, Body: []byte("x"), Headers: headers}
}

// retries lets a message with these headers fail as often as it may, and returns its waits and its envelope.
func retries(t *testing.T, c *consumer.Consumer, events *recorder, headers map[string]string) (waits []time.Duration, dead *backend.Failure) {
	t.Helper()
	q := memory.New("orders", memory.Options{})
	c.Queue = q
	publish(t, q, wishing("m", headers))
	stop := start(t, c)
	time.Sleep(100 * time.Hour)
	require.NoError(t, stop())
	for _, e := range events.of(consumer.Retried) {
		waits = append(waits, e.Delay)
	}
	letters := deadLetters(t, q)
	require.Len(t, letters, 1)
	require.Equal(t, headers, letters[0].Headers, "the wishes stay with the message")
	return waits, letters[0].Failure
}

var impatient = policy.Policy{Name: "impatient", MaxAttempts: 2, Backoff: policy.Fixed(time.Second)}

func TestWishesForTighterLimitsAreHeeded(t *testing.T) {
	sluggish := policy.Policy{MaxAttempts: 20, Backoff: policy.Fixed(4 * time.Minute), MaxDelay: time.Hour}
	for name, c := range map[string]struct {
		headers map[string]string
		waits   int
		reason  policy.Reason
		longest time.Duration
	}{
		"none":                   {nil, 4, policy.ReasonExhausted, time.Minute},
		"fewer attempts":         {map[string]string{"redeliver-max-attempts": "2"}, 1, policy.ReasonExhausted, time.Minute},
		"one attempt":            {map[string]string{"redeliver-max-attempts": "1"}, 0, policy.ReasonExhausted, 0},
		"more attempts":          {map[string]string{"redeliver-max-attempts": "99"}, 4, policy.ReasonExhausted, time.Minute},
		"a lower age":            {map[string]string{"redeliver-max-age": "2m30s"}, 2, policy.ReasonExpired, time.Minute},
		"a higher age":           {map[string]string{"redeliver-max-age": "9999h"}, 4, policy.ReasonExhausted, time.Minute},
		"both":                   {map[string]string{"redeliver-max-age": "2m30s", "redeliver-max-attempts": "2"}, 1, policy.ReasonExhausted, time.Minute},
		"a policy":               {map[string]string{"redeliver-policy": "impatient"}, 1, policy.ReasonExhausted, time.Minute},
		"a policy with a limit":  {map[string]string{"redeliver-policy": "sluggish", "redeliver-max-attempts": "3"}, 2, policy.ReasonExhausted, time.Minute},
		"a policy of longer":     {map[string]string{"redeliver-policy": "sluggish"}, 4, policy.ReasonExhausted, time.Minute},
		"what it has is granted": {map[string]string{"redeliver-policy": "same"}, 4, policy.ReasonExhausted, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				five := policy.Policy{Name: "five", MaxAttempts: 5, Backoff: policy.Fixed(time.Minute)}
				events := &recorder{}
				var last list[bool]
				con := consume(nil, five, events, func(_ context.Context, d *backend.Delivery) error {
					last.add(d.Last)
					return errDeclined
				})
				con.Overrides = map[string]policy.Policy{"impatient": impatient, "sluggish": sluggish, "same": five}
				con.Wishes = []string{"impatient", "sluggish", "same"}
				waits, dead := retries(t, con, events, c.headers)
				require.Len(t, waits, c.waits)
				for _, wait := range waits {
					require.Equal(t, c.longest, wait, "neither shorter than the policy has them, nor longer than the longest of it")
				}
				require.Equal(t, string(c.reason), dead.Reason)
				want := consumer.WishGranted
				if c.headers == nil {
					want = ""
				}
				for _, e := range append(events.of(consumer.Retried), events.of(consumer.DeadLettered)...) {
					require.Equal(t, want, e.Wish)
				}
				for i, is := range last.all() {
					require.Equal(t, i == c.waits && c.reason == policy.ReasonExhausted, is)
				}
			})
		})
	}
}

func TestWishesBoundEachRuleAndNothingIsDiscardedForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		stubborn := policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Minute), Rules: []policy.Rule{
			{Match: policy.Is(errDeclined), MaxAttempts: 50},
		}}
		c := consume(nil, stubborn, events, fail)
		waits, _ := retries(t, c, events, map[string]string{"redeliver-max-attempts": "4"})
		require.Len(t, waits, 3)
		require.Equal(t, 50, stubborn.Rules[0].MaxAttempts, "the policy itself is as it was")
	})
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		c := consume(nil, three, events, fail)
		c.Overrides = map[string]policy.Policy{"careless": {MaxAttempts: 9, Backoff: policy.Fixed(time.Hour), Rules: []policy.Rule{
			{Match: policy.Is(errDeclined), Action: policy.ActionDiscard},
		}}}
		c.Wishes = []string{"careless"}
		waits, dead := retries(t, c, events, map[string]string{"redeliver-policy": "careless"})
		require.Empty(t, waits)
		require.Equal(t, "permanent", dead.Reason)
		require.Equal(t, "careless", dead.Policy)
		require.Zero(t, events.count(consumer.Discarded))
	})
}

func TestWishesHoldAtReceiptToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, seen := newScripted(backend.Limits{}), &journal{}
		c := consume(q, three, &recorder{}, seen.wrap(succeed))
		c.Overrides = map[string]policy.Policy{"fragile": {MaxAttempts: 3, MaxLapses: policy.NoLapses, Backoff: policy.Fixed(time.Second)}}
		c.Wishes = []string{"fragile"}
		q.deliver(&backend.Delivery{Message: wishing("tried", map[string]string{"redeliver-max-attempts": "1"}), Attempt: 2})
		q.deliver(&backend.Delivery{Message: wishing("lapsed", map[string]string{"redeliver-policy": "fragile"}), Lapses: 1})
		q.deliver(&backend.Delivery{Message: message("sturdy"), Attempt: 2, Lapses: 1})
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, []string{"sturdy"}, seen.ids())
		require.Equal(t, "exhausted", q.outcome(t, "tried").Failure.Reason)
		require.Equal(t, "abandoned", q.outcome(t, "lapsed").Failure.Reason)
	})
}

func TestWishesThatCannotBeHeededAreIgnored(t *testing.T) {
	const canary = "canary-4711"
	for _, header := range []struct{ name, value string }{
		{"redeliver-max-attempts", "0"}, {"redeliver-max-attempts", "-1"}, {"redeliver-max-attempts", ""}, {"redeliver-max-attempts", "2.5"},
		{"redeliver-max-attempts", canary}, {"redeliver-max-attempts", "99999999999999999999"}, {"redeliver-max-attempts", strings.Repeat("9", 1<<16)},
		{"redeliver-max-age", "0s"}, {"redeliver-max-age", "-1s"}, {"redeliver-max-age", ""}, {"redeliver-max-age", "90"}, {"redeliver-max-age", canary},
		{"redeliver-policy", ""}, {"redeliver-policy", "five"}, {"redeliver-policy", canary}, {"redeliver-policy", "forbidden"},
	} {
		t.Run(header.name+" "+header.value[:min(len(header.value), 20)], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events, logged := &recorder{}, &logs{}
				c := consume(nil, three, events, fail)
				c.Logger = logged.logger()
				c.Overrides = map[string]policy.Policy{"allowed": impatient, "forbidden": impatient}
				c.Wishes = []string{"allowed"}
				waits, dead := retries(t, c, events, map[string]string{header.name: header.value})
				require.Equal(t, []time.Duration{time.Minute, time.Minute}, waits)
				require.Equal(t, "exhausted", dead.Reason)
				require.Equal(t, "three", dead.Policy)
				for _, e := range events.of(consumer.Retried) {
					require.Equal(t, consumer.WishIgnored, e.Wish)
				}
				warnings := logged.at(slog.LevelWarn)
				require.Len(t, warnings, 1, "once, not for each message")
				require.Contains(t, warnings[0], header.name)
				require.NotContains(t, strings.Join(logged.all(), ""), canary)
			})
		})
	}
}

// What is readable of several wishes holds, whatever else is not.
func TestOneUnreadableWishLeavesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		c := consume(nil, three, events, fail)
		waits, _ := retries(t, c, events, map[string]string{"redeliver-max-attempts": "2", "redeliver-max-age": "soon", "redeliver-policy": "none"})
		require.Len(t, waits, 1)
		require.Equal(t, consumer.WishIgnored, events.of(consumer.DeadLettered)[0].Wish)
	})
}

// Whatever is wished for, of whatever policies: no retry that the policy itself would not make, none before its own, and none
// after the longest wait that it may choose.
func TestNoWishGivesMoreThanThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		for range 60 {
			draw := func() policy.Policy {
				p := policy.Policy{
					MaxAttempts: 1 + random.IntN(6),
					Backoff:     policy.Exponential{Base: time.Duration(1+random.IntN(1e9)) * 3, Max: time.Duration(1+random.IntN(60)) * time.Minute},
					Jitter:      []policy.Jitter{policy.NoJitter, policy.FullJitter, policy.EqualJitter, policy.Proportional(0.3)}[random.IntN(4)],
				}
				if random.IntN(2) == 0 {
					p.MaxAge = time.Duration(1+random.IntN(600)) * time.Minute
				}
				if random.IntN(3) == 0 {
					p.Backoff = policy.Immediate{Attempts: 1 + random.IntN(6), Then: p.Backoff}
				}
				if random.IntN(3) == 0 {
					r := policy.Rule{Match: policy.Is(errDeclined), Action: policy.Action(random.IntN(4))}
					if r.Action <= policy.ActionRetry {
						r.MaxAttempts = 1 + random.IntN(9)
					}
					p.Rules = []policy.Rule{r}
				}
				require.NoError(t, p.Validate())
				return p
			}
			own, wished := draw(), draw()
			q, events := newScripted(backend.Limits{}), &recorder{}
			c := consume(q, own, events, fail)
			c.Overrides, c.Wishes = map[string]policy.Policy{"wished": wished}, []string{"wished"}
			deliveries := make(map[string]*backend.Delivery)
			for i := range 40 {
				headers := make(map[string]string)
				for name, value := range map[string]string{
					"redeliver-policy": "wished", "redeliver-max-attempts": fmt.Sprint(random.IntN(9)), "redeliver-max-age": fmt.Sprint(random.IntN(900), "m"),
				} {
					if random.IntN(2) == 0 {
						headers[name] = value
					}
				}
				d := &backend.Delivery{
					Message: wishing(fmt.Sprint(i), headers), Attempt: 1 + random.IntN(6), Age: time.Duration(random.IntN(300)) * time.Minute,
				}
				deliveries[d.ID] = d
				q.deliver(d)
			}
			stop := start(t, c)
			synctest.Wait()
			require.NoError(t, stop())
			for id, d := range deliveries {
				got := q.outcome(t, id)
				decision := own.Decide(policy.Failure{Attempt: d.Attempt, Err: errDeclined, MessageID: id, Age: d.Age})
				_, admitted := own.Admit(policy.Receipt{Attempt: d.Attempt})
				switch {
				case got.Outcome == backend.Retry:
					require.True(t, admitted)
					require.Equal(t, policy.ActionRetry, decision.Action)
					require.GreaterOrEqual(t, got.Delay, decision.Delay)
					require.LessOrEqual(t, got.Delay, max(own.MaxBackoff(), decision.Delay, 1))
					if own.MaxAge > 0 {
						require.LessOrEqual(t, d.Age+got.Delay, own.MaxAge)
					}
				case got.Outcome == backend.Discard:
					require.Equal(t, policy.ActionDiscard, decision.Action)
				default:
					require.Equal(t, backend.DeadLetter, got.Outcome)
				}
			}
		}
	})
}

func TestWishesNameOverrides(t *testing.T) {
	c := consume(memory.New("orders", memory.Options{}), three, &recorder{}, succeed)
	c.Overrides = map[string]policy.Policy{"impatient": impatient}
	c.Wishes = []string{"impatient", "impatiant"}
	require.ErrorContains(t, c.Run(t.Context()), `Wishes has "impatiant", which Overrides lacks`)
}
