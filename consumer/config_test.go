package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
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

func TestAConfigurationThatIsWrongIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*consumer.Consumer)
		says   []string
	}{
		"no queue":                          {func(c *consumer.Consumer) { c.Queue = nil }, []string{"Queue is nil"}},
		"no handler":                        {func(c *consumer.Consumer) { c.Handler = nil }, []string{"Handler is nil"}},
		"a handler that is nil in disguise": {func(c *consumer.Consumer) { c.Handler = consumer.HandlerFunc(nil) }, []string{"Handler is nil"}},
		"a JSON handler that is nil":        {func(c *consumer.Consumer) { c.Handler = consumer.JSON[order](nil) }, []string{"Handler is nil"}},
		"too much concurrency":              {func(c *consumer.Consumer) { c.Concurrency = math.MaxInt }, []string{"Concurrency is 9223372036854775807"}},
		"too much of both":                  {func(c *consumer.Consumer) { c.Concurrency, c.Prefetch = 1, math.MaxInt }, []string{"Prefetch 9223372036854775807"}},
		"no policy":                         {func(c *consumer.Consumer) { c.Policy = policy.Policy{} }, []string{"Policy: ", "MaxAttempts", "Backoff"}},
		"a curve with a fault":              {func(c *consumer.Consumer) { c.Policy.Backoff = policy.Exponential{Base: -time.Second} }, []string{"Policy: ", "Backoff.Base", "-1s"}},
		"an override with faults": {func(c *consumer.Consumer) {
			c.Overrides = map[string]policy.Policy{"bulk": {MaxAttempts: -1}}
			c.Choose = chooseNone
		}, []string{`Overrides["bulk"]: `, "MaxAttempts"}},
		"overrides without Choose": {func(c *consumer.Consumer) { c.Overrides = map[string]policy.Policy{"bulk": three} }, []string{"Choose is nil"}},
		"a negative lease":         {func(c *consumer.Consumer) { c.Lease = -time.Second }, []string{"Lease is -1s"}},
		"too short a lease":        {func(c *consumer.Consumer) { c.Lease = 99 * time.Millisecond }, []string{"Lease is 99ms", "at least 100ms"}},
		"a negative timeout":       {func(c *consumer.Consumer) { c.Timeout = -1 }, []string{"Timeout is -1ns"}},
		"a negative SettleTimeout": {func(c *consumer.Consumer) { c.SettleTimeout = -1 }, []string{"SettleTimeout is -1ns"}},
		"a negative concurrency":   {func(c *consumer.Consumer) { c.Concurrency = -1 }, []string{"Concurrency is -1"}},
		"a negative prefetch":      {func(c *consumer.Consumer) { c.Prefetch = -1 }, []string{"Prefetch is -1"}},
		"several at once": {func(c *consumer.Consumer) { c.Handler, c.Prefetch, c.Policy.MaxAttempts = nil, -1, -7 },
			[]string{"Handler is nil", "Prefetch is -1", "MaxAttempts", "-7"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := newFaulty("orders")
			con := consume(q, three, &recorder{}, succeed)
			c.change(con)
			err := con.Run(t.Context())
			require.Error(t, err)
			for _, part := range c.says {
				require.ErrorContains(t, err, part)
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				require.True(t, strings.HasPrefix(line, "consumer: "), line)
			}
			require.Zero(t, q.options(), "the broker is not asked")
			require.NoError(t, con.Shutdown(t.Context()), "there is nothing to wait for")
		})
	}
}

func chooseNone(*backend.Delivery) string { return "" }

func TestThePolicysFaultsStayWithinReach(t *testing.T) {
	c := consume(newFaulty("orders"), policy.Policy{MaxAttempts: 3}, &recorder{}, succeed)
	var invalid *policy.ValidationError
	require.ErrorAs(t, c.Run(t.Context()), &invalid)
	require.Equal(t, "Backoff", invalid.Faults[0].Path)
}

func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		var deadline time.Duration
		c := &consumer.Consumer{Queue: q, Policy: three, Logger: quiet, Handler: consumer.HandlerFunc(func(ctx context.Context, _ *backend.Delivery) error {
			at, _ := ctx.Deadline()
			deadline = time.Until(at)
			return policy.Permanent(errDeclined)
		})}
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, backend.SubscribeOptions{MaxInFlight: consumer.DefaultConcurrency, Lease: consumer.DefaultLease}, q.options())
		require.Equal(t, consumer.DefaultTimeout, deadline)
		host, err := os.Hostname()
		require.NoError(t, err)
		require.Equal(t, host, deadLetter(t, q.Queue).Consumer)
	})
}

func TestTheDefaultLoggerIsThatOfSlog(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var logged logs
	slog.SetDefault(logged.logger())
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error { return policy.Permanent(errDeclined) })
		c.Logger = nil
		publish(t, q, message("m"))
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
	})
	require.Len(t, logged.at(slog.LevelError), 1)
}

func TestTheShortestLeaseWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			time.Sleep(10 * time.Second)
			return ctx.Err()
		})
		c.Lease = 100 * time.Millisecond
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("m"))
	})
}

func TestAQueueThatIsMissingIsRefused(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	q.Refuse(backend.ErrQueueNotFound)
	err := consume(q, three, &recorder{}, succeed).Run(t.Context())
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, `"orders"`)

	// A queue that cannot check is found missing all the same.
	err = consume(bare{q}, three, &recorder{}, succeed).Run(t.Context())
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, `"orders"`)
}

func TestAMissingDeadLetterQueueIsRefused(t *testing.T) {
	q := memory.New("orders", memory.Options{DeadLetter: "dead"})
	q.DeadLetters().Refuse(backend.ErrQueueNotFound)
	err := consume(q, three, &recorder{}, succeed).Run(t.Context())
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, `"dead"`)
}

// checked is a queue whose check finds what the test says.
type checked struct {
	*faulty
	findings []backend.Finding
	err      error
	need     backend.Needs
}

func (c *checked) Check(_ context.Context, need backend.Needs) ([]backend.Finding, error) {
	c.need = need
	return c.findings, c.err
}

func TestFatalFindingsRefuseToStart(t *testing.T) {
	q := &checked{faulty: newFaulty("orders"), findings: []backend.Finding{
		{Fatal: true, Code: "delay_above_maximum", Text: "raise it"},
		{Code: "harmless", Text: "nothing to do"},
		{Fatal: true, Code: "retention_too_short", Text: "raise that too", Err: errNetwork},
	}}
	logged := &logs{}
	c := consume(q, three, &recorder{}, succeed)
	c.Logger = logged.logger()
	err := c.Run(t.Context())
	require.Len(t, logged.all(), 1, "the harmless one alone: the others are the error")
	require.ErrorContains(t, err, `consumer: queue "orders": delay_above_maximum: raise it`)
	require.ErrorContains(t, err, `consumer: queue "orders": retention_too_short: raise that too`)
	require.NotContains(t, err.Error(), "harmless")
	require.ErrorIs(t, err, errNetwork)
	require.NotErrorIs(t, err, backend.ErrQueueNotFound)
	var finding backend.Finding
	require.ErrorAs(t, err, &finding)
	require.Equal(t, "delay_above_maximum", finding.Code)
	require.Zero(t, q.options())
}

func TestACheckThatCannotBeMadeRefusesToStart(t *testing.T) {
	q := &checked{faulty: newFaulty("orders"), err: errNetwork}
	err := consume(q, three, &recorder{}, succeed).Run(t.Context())
	require.ErrorIs(t, err, errNetwork)
	require.ErrorContains(t, err, `check of queue "orders"`)
}

func TestOtherFindingsAreLoggedAndTheNeedsAreThoseOfAllPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &checked{faulty: newFaulty("orders"), findings: []backend.Finding{{Code: "long_backoff", Text: "it will take a while"}}}
		logged := &logs{}
		c := consume(q, three, &recorder{}, succeed)
		c.Logger, c.Lease, c.Timeout = logged.logger(), 45*time.Second, 7*time.Minute
		c.Overrides = map[string]policy.Policy{
			"slow":    {MaxAttempts: 2, Backoff: policy.Fixed(5 * time.Hour)},
			"patient": {MaxAttempts: 50, Backoff: policy.Fixed(time.Second)},
			"sturdy":  {MaxAttempts: 2, MaxLapses: 99, Backoff: policy.Fixed(time.Second)},
			"ruled": {MaxAttempts: 2, Backoff: policy.Fixed(time.Second), Rules: []policy.Rule{
				{Match: policy.Is(errDeclined), MaxAttempts: 60, Backoff: policy.Fixed(6 * time.Hour)},
			}},
		}
		c.Choose = chooseNone
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, backend.Needs{
			MaxDelay: 6 * time.Hour, MaxAttempts: 60, MaxLapses: 99, Lease: 45 * time.Second, HandlerBound: 7 * time.Minute,
		}, q.need)
		require.Len(t, logged.at(slog.LevelWarn), 1)
		require.Contains(t, logged.at(slog.LevelWarn)[0], "code=long_backoff")
	})
}

// bare is a queue without any optional ability.
type bare struct{ backend.Queue }

func TestAQueueThatCannotCheckIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen := &journal{}
		publish(t, q, message("m"))
		stop := start(t, consume(bare{q}, three, &recorder{}, seen.wrap(succeed)))
		synctest.Wait()
		require.NoError(t, stop())
		require.Len(t, seen.all(), 1)
	})
}

func TestASubscriptionThatFailsEndsRun(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	require.NoError(t, q.Close(t.Context()))
	err := consume(bare{q}, three, &recorder{}, succeed).Run(t.Context())
	require.ErrorIs(t, err, backend.ErrClosed)
	require.ErrorContains(t, err, `consumer: subscribe to queue "orders"`)
}

// deaf is a queue whose subscriptions do not close.
type deaf struct{ *memory.Queue }

type deafSubscription struct{ backend.Subscription }

func (d deaf) Subscribe(ctx context.Context, opts backend.SubscribeOptions) (backend.Subscription, error) {
	sub, err := d.Queue.Subscribe(ctx, opts)
	return deafSubscription{sub}, err
}

func (d deafSubscription) Close(ctx context.Context) error {
	_ = d.Subscription.Close(ctx)
	<-ctx.Done()
	return errors.Join(errNetwork, ctx.Err())
}

func TestACloseThatFailsIsReportedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := consume(deaf{memory.New("orders", memory.Options{})}, three, &recorder{}, succeed)
		c.SettleTimeout = 3 * time.Second
		stop := start(t, c)
		synctest.Wait()
		began := time.Now()
		err := stop()
		require.Equal(t, 3*time.Second, time.Since(began))
		require.ErrorIs(t, err, errNetwork)
		require.ErrorContains(t, err, `queue "orders": close`)
	})
}
