// Package readme_test holds the code that README.md shows, so that it compiles and does what is said there.
package readme_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

var payments = policy.Policy{
	Name:        "payments",
	MaxAttempts: 8, // the eighth failure is the last
	Backoff:     policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second},
	Jitter:      policy.FullJitter,
}

type Payment struct {
	Card   string
	Amount int
}

func charge(ctx context.Context, p Payment, d *backend.Delivery) error {
	if p.Amount <= 0 {
		return policy.Permanent(errors.New("the amount must be positive")) // no retry would help
	}
	return bank.Charge(ctx, d.ID, p.Card, p.Amount) // the message ID makes it idempotent
}

func consume(ctx context.Context, queue backend.Queue) error {
	c := &consumer.Consumer{
		Queue:   queue,
		Policy:  payments,
		Handler: consumer.JSON(charge),
	}
	return c.Run(ctx) // until ctx ends, then drains
}

func serve(queue backend.Queue) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return consume(ctx, queue)
}

// bank is where the money is.
var bank = new(fakeBank)

type fakeBank struct {
	downUntil time.Time
	charged   []string
}

func (b *fakeBank) Charge(_ context.Context, id, card string, amount int) error {
	if time.Now().Before(b.downUntil) {
		return errors.New("the bank is down")
	}
	b.charged = append(b.charged, id)
	return nil
}

func Example_decisions() {
	failure := policy.Failure{Attempt: 3, Err: errors.New("connection refused"), MessageID: "42"}
	fmt.Println(payments.Decide(failure).Explain())

	failure.Err = policy.RetryAfter(45*time.Second, errors.New("429 Too Many Requests"))
	fmt.Println(payments.Decide(failure).Explain())

	failure.Err = fmt.Errorf("charge: %w", policy.Permanent(errors.New("card expired")))
	fmt.Println(payments.Decide(failure).Explain())

	failure = policy.Failure{Attempt: 8, Err: errors.New("connection refused"), MessageID: "42"}
	fmt.Println(payments.Decide(failure).Explain())
	// Output:
	// retry in 1.644123307s: attempt 3 of 8 failed; exponential backoff 2s, full jitter from 0s to 2s
	// retry in 46.644123307s: attempt 3 of 8 failed; exponential backoff 2s, full jitter from 0s to 2s; the error asked for 45s, spread by up to 2s
	// dead-letter: attempt 3 of 8 failed with an error marked permanent
	// dead-letter: attempt 8 of 8 failed, the last
}

func TestNothingIsChargedForNothing(t *testing.T) {
	err := charge(t.Context(), Payment{Amount: 0}, &backend.Delivery{Attempt: 1})
	require.ErrorIs(t, err, policy.ErrPermanent)
}

func TestPaymentOutlivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bank = &fakeBank{downUntil: time.Now().Add(10 * time.Second)}
		queue := memory.New("payments", memory.Options{})
		err := queue.Publish(t.Context(), backend.Message{ID: "42", Body: []byte(`{"Card": "4711", "Amount": 5}`)})
		require.NoError(t, err)

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // of virtual time: it takes milliseconds
		defer cancel()
		require.NoError(t, consume(ctx, queue))
		require.Equal(t, []string{"42"}, bank.charged)
	})
}

func Example_plan() {
	plan, err := analysis.New(payments, analysis.Conditions{})
	if err != nil {
		panic(err)
	}
	alive := plan.Survival(30 * time.Second).AtStart // of those that fail first as an outage of 30 s begins
	fmt.Printf("%s survive, certain to 0.1 %%: %v\n", alive.Percent(), alive.Error < 0.001)
	// Output:
	// 52.5 % survive, certain to 0.1 %: true
}

func TestServeDrainsAtSIGTERM(t *testing.T) {
	guard := make(chan os.Signal, 1) // the signal must not end the test where serve does not ask for it
	signal.Notify(guard, syscall.SIGTERM)
	defer signal.Stop(guard)

	bank = new(fakeBank)
	queue := memory.New("payments", memory.Options{})
	require.NoError(t, queue.Publish(t.Context(), backend.Message{Body: []byte(`{"Card": "4711", "Amount": 5}`)}))
	ended := make(chan error, 1)
	go func() { ended <- serve(queue) }()
	require.Eventually(t, func() bool {
		stats, err := queue.Stats(t.Context())
		return err == nil && stats.Ready+stats.Waiting+stats.Leased == 0
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	require.NoError(t, <-ended)
}

// Every block of Go in the README stands, line by line, in one of the files that it names.
func TestREADMEShowsCodeThatRuns(t *testing.T) {
	root := filepath.Join("..", "..")
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	var sources []string
	for _, file := range []string{"readme/readme_test.go", "pgmq/main.go", "rabbit/main.go", "conformance/conformance_test.go"} {
		source, err := os.ReadFile(filepath.Join(root, "examples", filepath.FromSlash(file)))
		require.NoError(t, err)
		require.Contains(t, string(readme), "examples/"+file)
		sources = append(sources, unindented(string(source)))
	}
	all := strings.Join(sources, "\n")
	blocks := strings.Split(string(readme), "```go\n")[1:]
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		code, _, closed := strings.Cut(block, "```")
		require.True(t, closed)
		for part := range strings.SplitSeq(unindented(code), "\n\n") {
			require.Contains(t, all, strings.TrimSpace(part), "README.md shows code that stands in no example")
		}
	}
}

// unindented returns the lines without the tabs that they begin with.
func unindented(code string) string {
	lines := strings.Split(code, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimLeft(line, "\t")
	}
	return strings.Join(lines, "\n")
}
