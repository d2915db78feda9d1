package pgmq_test

import (
	"context"
	"errors"
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

// What jsonb does not take is refused before anything is asked of the database.
func ExampleQueue_Publish() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	queue, err := pgmq.Open(pool, "orders", pgmq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = queue.Publish(context.Background(), backend.Message{ID: "42", Body: []byte("two pizzas")})
	fmt.Println(errors.Is(err, backend.ErrInvalidMessage))
	fmt.Println(err)
	// Output:
	// true
	// pgmq: queue "orders": publish: invalid message: message "42": the body is not JSON: PGMQ stores JSON, so wrap other data in a JSON string
}
