package rabbit_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/policy"
)

const address = "amqp://user:password@rabbit.example/"

// What is wrong with a name, a URL or an option is told before anything is asked of the broker; a password never is.
func ExampleOpen() {
	_, err := rabbit.Open("rabbit.example:5672", "orders", rabbit.Options{})
	fmt.Println(err)

	queue, err := rabbit.Open(address, "orders", rabbit.Options{})
	fmt.Println(queue.Name(), err)
	// Output:
	// rabbit: queue "orders": the URL is not understood: write amqp://user:password@host:5672/vhost, with amqps for TLS, and percent-encode reserved characters of user, password and vhost
	// orders <nil>
}

// Queue and dead-letter queue are made once, by whoever sets the broker up. A program declares what its retries need when it
// starts.
func ExampleQueue_Declare() {
	ctx := context.Background()
	payments := policy.Policy{MaxAttempts: 8, Backoff: policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second}}
	queue, err := rabbit.Open(address, "payments", rabbit.Options{})
	if err != nil {
		panic(err)
	}
	if err := queue.Declare(ctx, payments); err != nil {
		panic(err)
	}
}

// The more a policy's delays are spread, the more parking queues they use. Fewer bands make fewer queues, in which a retry may
// wait behind others for longer.
func ExampleQueue_ParkingQueues() {
	payments := policy.Policy{MaxAttempts: 8, Backoff: policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second}}
	fmt.Println("bands  none  ±15%  equal  full  later by up to")
	for _, bands := range []int{24, 12, 6} {
		queue, err := rabbit.Open(address, "payments", rabbit.Options{BandsPerDecade: bands})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%5d", bands)
		for _, jitter := range []policy.Jitter{policy.NoJitter, policy.Proportional(0.15), policy.EqualJitter, policy.FullJitter} {
			payments.Jitter = jitter
			fmt.Printf("  %4d", len(queue.ParkingQueues(payments)))
		}
		fmt.Printf("  %.0f%%\n", 100*queue.Limits().Stretch)
	}
	// Output:
	// bands  none  ±15%  equal  full  later by up to
	//    24     7    29    51    85  12%
	//    12     7    18    26    43  23%
	//     6     7    12    13    22  48%
}

// A delay is rounded up to a millisecond, and cut to the longest that a parking queue holds.
func ExampleQueue_Limits() {
	queue, err := rabbit.Open(address, "orders", rabbit.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(queue.Limits().Applied(1500*time.Millisecond + 1))
	fmt.Println(queue.Limits().Applied(60 * 24 * time.Hour))
	// Output:
	// 1.501s
	// 1193h0m0s
}

// This finds the parking queues that no policy uses any longer. RabbitMQ's tools delete them, or QueueDelete of amqp091-go;
// those that are empty, since what is in them is lost.
func ExampleQueue_Parked() {
	ctx := context.Background()
	inUse := []policy.Policy{{MaxAttempts: 8, Backoff: policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second}}}
	queue, err := rabbit.Open(address, "payments", rabbit.Options{})
	if err != nil {
		panic(err)
	}
	defer queue.Close(ctx)
	parked, err := queue.Parked(ctx)
	if err != nil {
		panic(err)
	}
	needed := queue.ParkingQueues(inUse...)
	for _, p := range parked {
		if !slices.Contains(needed, p.Name) {
			fmt.Println(p.Name, p.Messages)
		}
	}
}
