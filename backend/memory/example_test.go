package memory_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

// A message fails, is dead-lettered, and is found in the dead-letter queue with the record of its failure.
func Example() {
	ctx := context.Background()
	orders := memory.New("orders", memory.Options{})
	if err := orders.Publish(ctx, backend.Message{ID: "1", Body: []byte("one pizza")}); err != nil {
		log.Fatal(err)
	}

	sub, err := orders.Subscribe(ctx, backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close(ctx)
	batch, err := sub.Receive(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	err = sub.Settle(ctx, []backend.Settlement{{
		Delivery: batch[0],
		Outcome:  backend.DeadLetter,
		Failure:  &backend.Failure{Reason: "permanent", Error: "no such pizza", Attempts: 1},
	}})
	if err != nil {
		log.Fatal(err)
	}

	dead, err := orders.DeadLetters().Subscribe(ctx, backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer dead.Close(ctx)
	batch, err = dead.Receive(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	letter := batch[0]
	fmt.Printf("%s in %s: %s\n", letter.Body, letter.Queue, letter.Failure.Error)
	fmt.Println("failed in", letter.Failure.Origin, "after attempt", letter.Failure.Attempts)
	// Output:
	// one pizza in orders_dlq: no such pizza
	// failed in orders after attempt 1
}

// Refuse plays a dead-letter queue that is full: the message stays where it is.
func ExampleQueue_Refuse() {
	ctx := context.Background()
	orders := memory.New("orders", memory.Options{})
	orders.DeadLetters().Refuse(fmt.Errorf("no room"))
	if err := orders.Publish(ctx, backend.Message{ID: "1"}); err != nil {
		log.Fatal(err)
	}
	sub, err := orders.Subscribe(ctx, backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close(ctx)
	batch, err := sub.Receive(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	err = sub.Settle(ctx, []backend.Settlement{{
		Delivery: batch[0],
		Outcome:  backend.DeadLetter,
		Failure:  &backend.Failure{Reason: "permanent", Attempts: 1},
	}})
	fmt.Println(backend.ErrorAt(err, 0))
	fmt.Println("settled:", batch[0].Settled())
	// Output:
	// memory: settle in "orders": message "1": dead-letter to "orders_dlq": no room
	// settled: false
}
