package consumer_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/policy"
)

func TestChoosePicksThePolicyOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, logged := &journal{}, &logs{}
		c := consume(q, three, &recorder{}, seen.wrap(fail))
		c.Logger = logged.logger()
		c.Overrides = map[string]policy.Policy{
			"once":  {MaxAttempts: 1, Backoff: policy.Fixed(time.Second)},
			"named": {Name: "its own name", MaxAttempts: 2, Backoff: policy.Fixed(time.Hour)},
		}
		c.Choose = func(d *backend.Delivery) string { return d.Headers["policy"] }
		c.Redact = func(s string) string { return strings.ReplaceAll(s, "secret", "***") }
		for id, name := range map[string]string{"default": "", "once": "once", "named": "named", "lacking": "lacking-secret", "lacking too": "lacking-secret"} {
			publish(t, q, backend.Message{ID: id, Headers: map[string]string{"policy": name}})
		}
		stop := start(t, c)
		time.Sleep(24 * time.Hour)
		require.NoError(t, stop())

		require.Len(t, seen.of("default"), 3)
		require.Len(t, seen.of("once"), 1)
		require.Len(t, seen.of("named"), 2)
		require.Equal(t, time.Hour, seen.of("named")[1].at.Sub(seen.of("named")[0].at))
		require.Len(t, seen.of("lacking"), 3)
		names := map[string]string{}
		for _, d := range deadLetters(t, q) {
			names[d.ID] = d.Failure.Policy
		}
		require.Equal(t, map[string]string{"default": "three", "once": "once", "named": "its own name", "lacking": "three", "lacking too": "three"}, names)

		var complaints []string
		for _, line := range logged.at(slog.LevelError) {
			if strings.Contains(line, "Overrides lacks") {
				complaints = append(complaints, line)
			}
		}
		require.Len(t, complaints, 1, "once, not for each message")
		require.Contains(t, complaints[0], "lacking-***")
	})
}

// The limits at receipt are those of the delivery's own policy too.
func TestTheChosenPolicyAdmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, seen := newScripted(backend.Limits{}), &journal{}
		c := consume(q, three, &recorder{}, seen.wrap(succeed))
		c.Overrides = map[string]policy.Policy{"fragile": {MaxAttempts: 3, MaxLapses: policy.NoLapses, Backoff: policy.Fixed(time.Second)}}
		c.Choose = func(d *backend.Delivery) string { return d.Headers["policy"] }
		stop := start(t, c)
		q.deliver(&backend.Delivery{Message: backend.Message{ID: "sturdy"}, Lapses: 1})
		q.deliver(&backend.Delivery{Message: backend.Message{ID: "fragile", Headers: map[string]string{"policy": "fragile"}}, Lapses: 1})
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, []string{"sturdy"}, seen.ids())
		require.Equal(t, "abandoned", q.outcome(t, "fragile").Failure.Reason)
	})
}
