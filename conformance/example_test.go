package conformance_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/conformance"
)

// A test that holds a backend to the contract. The memory backend stands for your own.
func ExampleRun() {
	testConformance := func(t *testing.T) {
		conformance.Run(t, conformance.Harness{
			Name: "memory",
			Open: func(_ context.Context, name string) (*conformance.Fixture, error) {
				queue := memory.New(name, memory.Options{})
				return &conformance.Fixture{
					Queue:       queue,
					DeadLetters: queue.DeadLetters(),
					Reopen:      func(context.Context) (backend.Queue, error) { return queue.Open(), nil },
					Crash:       func(s backend.Subscription) { s.(*memory.Subscription).Crash() },
					Close:       queue.Close,
				}, nil
			},
		})
	}
	_ = testConformance
}

// The sentences of the contract are what a failure prints.
func ExampleSentences() {
	for _, s := range conformance.Sentences()[5:7] {
		fmt.Println(s)
	}
	// Output:
	// sentence 6: Ack is final: the message never comes back.
	// sentence 7: A retry is never early: not before its delay has passed since Settle was called.
}
