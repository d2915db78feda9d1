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

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/budget"
	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/policyfile"
	"github.com/redeliver/redeliver/retry"
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

// spare bounds the retries of all consumers that call the bank.
var spare budget.Bucket

func careful(queue backend.Queue, breaker consumer.Breaker) *consumer.Consumer {
	return &consumer.Consumer{
		Queue:   queue,
		Policy:  payments,
		Handler: consumer.JSON(charge),
		Budget:  &spare,
		Breaker: breaker, // circuitbreaker.NewWithDefaults[any](), for example
	}
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

func (b *fakeBank) Balance(context.Context, string) (int, error) { return 500, nil }

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

func Example_file() {
	file, err := policyfile.Load("policies.yaml", policyfile.Options{Environ: os.Environ()})
	if err != nil {
		panic(err) // each fault with its line and column, and what would be right
	}
	for _, status := range []int{503, 429, 422} {
		err := &classify.StatusError{Code: status} // as classify.Response makes one of a response
		d := file.For("payments", "").Decide(policy.Failure{Attempt: 3, Err: err, MessageID: "42"})
		fmt.Println(status, d.Explain())
	}
	// Output:
	// 503 retry in 1.644123307s: attempt 3 of 8 failed; exponential backoff 2s, full jitter from 0s to 2s
	// 429 retry in 49.323699196s: attempt 3 of 20 failed; fixed backoff 1m0s, full jitter from 0s to 1m0s; by rule throttled
	// 422 dead-letter: attempt 3 of 8 failed; by rule refused
}

func consumeAsFiled(ctx context.Context, queue backend.Queue, file *policyfile.File) error {
	c := &consumer.Consumer{
		Queue:     queue,
		Policy:    file.Policies[file.Default],
		Overrides: file.Policies,
		Choose:    file.Choose("type"), // by queue, and by the header that tells the type of a message
		Wishes:    file.Wishes,         // what messages may ask for
		Handler:   consumer.JSON(charge),
	}
	return c.Run(ctx)
}

func Example_wishes() {
	queue := memory.New("payments", memory.Options{})
	err := queue.Publish(context.Background(), backend.Message{
		Body:    []byte(`{"Card": "4711", "Amount": 5}`),
		Headers: map[string]string{backend.HeaderMaxAttempts: "2", backend.HeaderMaxAge: "10m"},
	})
	fmt.Println(err)
	// Output:
	// <nil>
}

func Example_call() {
	ctx := context.Background()
	balance, err := retry.Value(ctx, payments, func(ctx context.Context) (int, error) {
		return bank.Balance(ctx, "4711")
	})
	fmt.Println(balance, err)
	// Output:
	// 500 <nil>
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

// A queue has the policy that the file gives it, and a type of message its own.
func TestConsumerFollowsTheFile(t *testing.T) {
	file, err := policyfile.Load("policies.yaml", policyfile.Options{})
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		bank = &fakeBank{downUntil: time.Now().Add(10 * time.Second)}
		queue := memory.New("invoices", memory.Options{})
		require.NoError(t, queue.Publish(t.Context(), backend.Message{ID: "42", Body: []byte(`{"Card": "4711", "Amount": 5}`)}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.NoError(t, consumeAsFiled(ctx, queue, file))
		require.Equal(t, []string{"42"}, bank.charged)
	})
	require.Equal(t, "patient", file.NameFor("invoices", ""))
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

func TestACarefulConsumerWorksThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bank = &fakeBank{downUntil: time.Now().Add(10 * time.Minute)}
		queue := memory.New("payments", memory.Options{})
		for i := range 20 {
			err := queue.Publish(t.Context(), backend.Message{ID: fmt.Sprint(i), Body: []byte(`{"Card": "4711", "Amount": 5}`)})
			require.NoError(t, err)
		}
		c := careful(queue, circuitbreaker.NewWithDefaults[any]())
		c.Concurrency = 1 // the fake bank has one counter

		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		require.NoError(t, c.Run(ctx))
		require.Len(t, bank.charged, 20)
	})
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
	policies, err := os.ReadFile("policies.yaml")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```yaml\n"+string(policies)+"```\n")
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
