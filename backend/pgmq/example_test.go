package pgmq_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

// A name that PostgreSQL or PGMQ would turn into another one is refused before anything is asked of the database.
func ExampleOpen() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	_, err = pgmq.Open(pool, "Orders", pgmq.Options{})
	fmt.Println(err)

	queue, err := pgmq.Open(pool, "orders", pgmq.Options{})
	fmt.Println(queue.Name(), err)
	// Output:
	// pgmq: queue name "Orders" holds "O": use a-z, 0-9 and _ only
	// orders <nil>
}

// A delay of any length is held to the microsecond, rounded up.
func ExampleQueue_Limits() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	queue, err := pgmq.Open(pool, "orders", pgmq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(queue.Limits().Applied(1500*time.Millisecond + 1))
	fmt.Println(queue.Limits().Applied(90 * 24 * time.Hour))
	// Output:
	// 1.500001s
	// 2160h0m0s
}

// Queue and dead-letter queue are created by whoever sets the database up, not by a consumer that starts.
func ExampleQueue_Create() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	queue, err := pgmq.Open(pool, "orders", pgmq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := queue.Create(ctx); err != nil {
		log.Fatal(err)
	}
	if err := queue.Publish(ctx, backend.Message{Body: []byte(`{"order": 42}`)}); err != nil {
		log.Fatal(err)
	}
}
