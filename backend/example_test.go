package backend_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// The document in the header redeliver-failure of a dead letter.
func ExampleFailure_Encode() {
	f := backend.Failure{
		Reason:         "exhausted",
		Error:          "card declined",
		Attempts:       5,
		DeadLetteredAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		Origin:         "payments",
		MessageID:      "7",
	}
	fmt.Printf("%s\n", f.Encode(backend.DefaultEnvelopeBudget))
	// Output:
	// {"v":1,"reason":"exhausted","error":"card declined","attempts":5,"dead_lettered_at":"2026-03-04T05:06:07.000Z","origin":"payments","message_id":"7"}
}

func ExampleParseFailure() {
	f, err := backend.ParseFailure([]byte(`{"v":1,"reason":"permanent","attempts":1,"origin":"payments","message_id":"7"}`))
	if err != nil {
		fmt.Println("foreign dead letter:", err)
		return
	}
	fmt.Printf("message %s failed in %s: %s\n", f.MessageID, f.Origin, f.Reason)

	_, err = backend.ParseFailure([]byte("written by something else"))
	fmt.Println(err)
	// Output:
	// message 7 failed in payments: permanent
	// backend: envelope is not readable: invalid character 'w' looking for beginning of value
}

// What the error of Settle means for one item of the batch.
func ExampleErrorAt() {
	err := backend.NewBatchError([]error{nil, fmt.Errorf("message %q: %w", "8", backend.ErrLeaseLost)})
	for i, id := range []string{"7", "8"} {
		switch err := backend.ErrorAt(err, i); {
		case err == nil:
			fmt.Println(id, "is settled")
		case errors.Is(err, backend.ErrLeaseLost):
			fmt.Println(id, "is another consumer's")
		}
	}
	// Output:
	// 7 is settled
	// 8 is another consumer's
}

// A broker that counts in whole seconds, up to twelve hours.
func ExampleLimits_Applied() {
	l := backend.Limits{Granularity: time.Second, MaxDelay: 12 * time.Hour}
	fmt.Println(l.Applied(1500*time.Millisecond), l.Applied(20*time.Hour))
	// Output: 2s 12h0m0s
}
