package conformance_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redeliver/redeliver/conformance"
)

// Check needs no test. A harness that does not reach its broker breaks no sentence of the contract: it is reported as what it
// is, for each case.
func ExampleCheck() {
	violations := conformance.Check(context.Background(), conformance.Harness{
		Name: "mybroker",
		Open: func(context.Context, string) (*conformance.Fixture, error) {
			return nil, errors.New("connection refused")
		},
	})
	first := violations[0]
	fmt.Println("case:", first.Case)
	fmt.Println(first.Sentence)
	// Output:
	// case: receive/a message arrives as it was sent
	// The harness failed: it has to open a fresh queue, publish to it and tear it down, on a machine that keeps up with its leases.
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
