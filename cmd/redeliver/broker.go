package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/backend/rabbit"
)

// brokers makes, by name, what the analysis has to know of a broker. The limits
// are those that the backends state. Nothing connects.
var brokers = map[string]func() (analysis.Broker, error){
	"memory": func() (analysis.Broker, error) {
		return analysis.Broker{Name: "the memory backend", Limits: memory.New("any", memory.Options{}).Limits()}, nil
	},
	"pgmq": func() (analysis.Broker, error) {
		pool, err := pgxpool.New(context.Background(), "postgres://127.0.0.1/any")
		if err != nil {
			return analysis.Broker{}, err
		}
		defer pool.Close()
		queue, err := pgmq.Open(pool, "any", pgmq.Options{})
		if err != nil {
			return analysis.Broker{}, err
		}
		return analysis.Broker{Name: "PGMQ", Limits: queue.Limits()}, nil
	},
	"rabbitmq": func() (analysis.Broker, error) {
		queue, err := rabbit.Open("amqp://127.0.0.1", "any", rabbit.Options{})
		if err != nil {
			return analysis.Broker{}, err
		}
		return analysis.Broker{Name: "RabbitMQ", Limits: queue.Limits(), ParkingQueues: queue.ParkingQueues}, nil
	},
	"sqs": func() (analysis.Broker, error) {
		return analysis.Broker{
			Name: "SQS",
			// ChangeMessageVisibility takes whole seconds, and keeps a message
			// invisible for 12 hours from its receipt at most (Amazon SQS API
			// Reference).
			Limits:    backend.Limits{Granularity: time.Second, MaxDelay: 12 * time.Hour},
			Retention: 4 * 24 * time.Hour, // by default
		}, nil
	},
}

// A brokerFlag is the flags that say what holds the waits.
type brokerFlag struct {
	name      string
	retention time.Duration
}

func (b *brokerFlag) add(cmd *cobra.Command) {
	known := slices.Sorted(maps.Keys(brokers))
	cmd.Flags().StringVarP(&b.name, "broker", "b", "", "what holds the messages: "+strings.Join(known, ", ")+"; exact and without limits if none is given")
	_ = cmd.RegisterFlagCompletionFunc("broker", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
}

// addRetention is for commands whose findings depend on it.
func (b *brokerFlag) addRetention(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&b.retention, "retention", 0, "how long the broker keeps a message; its own default if none is given")
}

func (b *brokerFlag) broker() (analysis.Broker, error) {
	var broker analysis.Broker
	if err := notNegative("retention", b.retention); err != nil {
		return broker, err
	}
	if b.name != "" {
		open, ok := brokers[b.name]
		if !ok {
			return broker, fmt.Errorf("--broker %s: not known: it may be %s", b.name, strings.Join(slices.Sorted(maps.Keys(brokers)), ", "))
		}
		var err error
		if broker, err = open(); err != nil {
			return broker, err
		}
	}
	if b.retention > 0 {
		broker.Retention = b.retention
	}
	return broker, nil
}
