package pgmq_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// The row in shipments, the message to the invoices' queue and the removal of the order happen together, once.
func ExampleInTx() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop?pool_max_conns=20")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	orders, err := pgmq.Open(pool, "orders", pgmq.Options{})
	if err != nil {
		log.Fatal(err)
	}
	invoices, err := pgmq.Open(pool, "invoices", pgmq.Options{})
	if err != nil {
		log.Fatal(err)
	}

	ship := func(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error {
		if _, err := tx.Exec(ctx, "INSERT INTO shipments (goods) VALUES ($1::jsonb->>'goods')", d.Body); err != nil {
			return err // all is rolled back, and the policy decides
		}
		return invoices.PublishTx(ctx, tx, backend.Message{ID: d.ID, Body: d.Body})
	}
	c := &consumer.Consumer{
		Queue:       orders,
		Policy:      policy.Policy{MaxAttempts: 8, Backoff: policy.Exponential{Base: time.Second, Max: time.Minute}},
		Handler:     consumer.HandlerFunc(pgmq.InTx(ship)),
		Concurrency: 10,               // each takes a connection
		Timeout:     10 * time.Second, // and no transaction is open for longer
	}
	fmt.Println(c.Queue.Name())
	// Output: orders
}

// With the body decoded, and a transaction of the handler's own choice.
func ExampleCompleteTx() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	type order struct{ Goods string }
	ship := func(ctx context.Context, o order, d *backend.Delivery) error {
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			if err := pgmq.CompleteTx(ctx, tx, d); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO shipments (goods) VALUES ($1)", o.Goods)
			return err
		})
	}
	handler := consumer.JSON(ship)

	// What does not decode fails before there is a transaction.
	fmt.Println(handler.Handle(context.Background(), &backend.Delivery{Message: backend.Message{Body: json.RawMessage(`7`)}}))
	// Output: consumer: body does not decode into pgmq_test.order: number for pgmq_test.order at byte 1 of 1
}
