package endurance

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

const (
	kills    = 10
	messages = 5000
)

// A consumer process is killed ten times in the middle of its work. What it held comes back when the lease has run out;
// every message ends acked or dead-lettered, and no more often run than the policy allows.
func TestKilledConsumersLoseNothing(t *testing.T) {
	url := brokertest.Postgres(t)
	pool := connect(t, url)
	for _, mix := range []struct {
		name     string
		perMille int
	}{{"handler that fails now and then", 400}, {"handler that succeeds", 0}} {
		t.Run(mix.name, func(t *testing.T) {
			name := names(t, "kill")
			fill(t, pool, name, messages)
			drop(t, pool, name)
			queue, archive, dead := table("q_", name), table("a_", name), table("q_", name+"_dlq")
			done := func() int {
				return count(t, pool, fmt.Sprintf(`SELECT (SELECT count(*) FROM %s) + (SELECT count(*) FROM %s)`, archive, dead))
			}

			for range kills {
				before := done()
				victim := process(t, url, name, mix.perMille)
				require.Eventually(t, func() bool { return done() >= min(before+messages/(2*kills), messages) }, time.Minute, time.Millisecond)
				require.NoError(t, victim.Process.Signal(os.Kill))
				_ = victim.Wait()
			}
			lapsed := count(t, pool, fmt.Sprintf(`SELECT count(*) FROM %s WHERE read_ct > 0`, queue))
			require.Positive(t, lapsed, "the kills hit nothing in mid-work")

			last := process(t, url, name, mix.perMille)
			require.Eventually(t, func() bool { return count(t, pool, "SELECT count(*) FROM "+queue) == 0 }, 2*time.Minute, 20*time.Millisecond)
			require.NoError(t, last.Process.Signal(os.Interrupt))
			_ = last.Wait()

			// Each message is in one place, once.
			require.Equal(t, messages, done())
			require.Equal(t, messages, count(t, pool, fmt.Sprintf(
				`SELECT count(DISTINCT id) FROM (SELECT headers->>'redeliver-id' id FROM %s UNION ALL SELECT headers->>'redeliver-id' FROM %s) ids`, archive, dead)))

			record := `headers->'redeliver-failure'`
			if mix.perMille == 0 {
				require.Zero(t, count(t, pool, "SELECT count(*) FROM "+dead))
				return
			}
			require.Positive(t, count(t, pool, "SELECT count(*) FROM "+dead))
			require.Zero(t, count(t, pool, fmt.Sprintf(
				`SELECT count(*) FROM %s WHERE %s->>'reason' <> 'exhausted' OR (%[2]s->>'attempts')::int <> %[3]d OR coalesce((%[2]s->>'lapses')::int, 0) > %[4]d`,
				dead, record, patient.MaxAttempts, policy.DefaultMaxLapses)), "dead letters other than by %d failures", patient.MaxAttempts)
			require.Zero(t, count(t, pool, fmt.Sprintf(
				`SELECT count(*) FROM %s WHERE coalesce((headers->'redeliver-counts'->>'failures')::int, 0) >= %d`, archive, patient.MaxAttempts)))
		})
	}
}
