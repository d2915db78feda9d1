package rabbit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/policy"
)

// topology is what this package declares for a work queue, and what of it is known to be there.
type topology struct {
	queue string // the user's
	dead  string // the user's dead-letter queue; empty if dead letters go to an exchange of the user's

	retry  string // exchange of type headers: to the band that a message names
	back   string // exchange of type fanout: to the work queue, where messages go that have waited, or need not
	graves string // exchange of type fanout: to the dead-letter queue
	prefix string // of the parking queues' names

	mu       sync.Mutex
	declared map[part]bool
	turn     chan struct{} // held by the one who declares
}

// part is a part of the topology that is declared, or found missing, by itself.
type part struct {
	what string // backPart, gravesPart, or empty for the parking queue of the band
	band band
}

var (
	backPart   = part{what: "back"}   // the exchanges of the way back to the work queue
	gravesPart = part{what: "graves"} // the exchange for dead letters
)

func newTopology(queue, dead string) *topology {
	return &topology{
		queue: queue, dead: dead,
		retry: queue + ".retry", back: queue + ".retry.return", graves: queue + ".retry.dead", prefix: queue + ".retry.v1.",
		declared: make(map[part]bool),
		turn:     make(chan struct{}, 1),
	}
}

func (t *topology) parking(b band) string { return t.prefix + b.text() }

// parkingArguments are those of the parking queue of a band. They belong to the version in its name: what changes them
// needs another version, since RabbitMQ refuses to declare a queue again with other arguments.
//
// Quorum queues, because only those hand a message on at least once when its time is up. At-least-once needs reject-publish.
// No x-expires, which would delete the messages with the queue.
func (t *topology) parkingArguments(b band) amqp.Table {
	return amqp.Table{
		argType:                  string(Quorum),
		"x-message-ttl":          expiration(held(b.delay())),
		"x-dead-letter-exchange": t.back,
		"x-dead-letter-strategy": "at-least-once",
		"x-overflow":             "reject-publish",
	}
}

// forget makes the next one who needs something declare it again.
func (t *topology) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.declared)
}

// missing returns those of the parts that are not known to be there.
func (t *topology) missing(parts []part) []part {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lack []part
	for _, p := range parts {
		if !t.declared[p] && !slices.Contains(lack, p) {
			lack = append(lack, p)
		}
	}
	return lack
}

func (t *topology) note(p part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.declared[p] = true
}

// known returns the bands that were declared here.
func (t *topology) known() []band {
	t.mu.Lock()
	defer t.mu.Unlock()
	var bands []band
	for p := range t.declared {
		if p.what == "" {
			bands = append(bands, p.band)
		}
	}
	return bands
}

// ensure declares those of the parts that are not known to be there, and returns the errors of those that could not be
// declared. It is quick if there is nothing to do.
func (q *Queue) ensure(ctx context.Context, parts ...part) map[part]error {
	if q.opts.NoDeclare || q.top.missing(parts) == nil {
		return nil
	}
	errs := make(map[part]error)
	fail := func(lack []part, err error) map[part]error {
		for _, p := range lack {
			errs[p] = err
		}
		return errs
	}
	select {
	case q.top.turn <- struct{}{}:
		defer func() { <-q.top.turn }()
	case <-ctx.Done():
		return fail(q.top.missing(parts), ctx.Err())
	}
	lack := q.top.missing(parts)
	if lack == nil {
		return nil
	}
	err := q.visit(ctx, func(v *visit) error {
		for i, p := range lack {
			err := q.declare(v, p)
			if code(err) == amqp.NotFound && p.what == "" {
				// The exchange that was declared once is gone.
				if err = q.declare(v, backPart); err == nil {
					err = q.declare(v, p)
				}
			}
			switch {
			case err == nil:
				q.top.note(p)
			case v.link.conn.IsClosed():
				fail(lack[i:], err)
				return nil
			default:
				errs[p] = err
			}
		}
		return nil
	})
	if err != nil {
		return fail(lack, err)
	}
	return errs
}

func (q *Queue) declare(v *visit, p part) error {
	t := q.top
	switch p {
	case backPart:
		if err := q.declareExchange(v, t.retry, amqp.ExchangeHeaders); err != nil {
			return err
		}
		if err := q.declareExchange(v, t.back, amqp.ExchangeFanout); err != nil {
			return err
		}
		return q.bind(v, t.queue, t.back, nil)
	case gravesPart:
		if t.dead == "" {
			return nil
		}
		if err := q.declareExchange(v, t.graves, amqp.ExchangeFanout); err != nil {
			return err
		}
		return q.bind(v, t.dead, t.graves, nil)
	}
	name := t.parking(p.band)
	err := v.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, t.parkingArguments(p.band))
		return err
	})
	if err != nil {
		return fmt.Errorf("declare parking queue %q: %w", name, q.explain(err))
	}
	return q.bind(v, name, t.retry, t.match(p.band))
}

func (q *Queue) declareExchange(v *visit, name, kind string) error {
	err := v.do(func(ch *amqp.Channel) error { return ch.ExchangeDeclare(name, kind, true, false, false, false, nil) })
	if err != nil {
		return fmt.Errorf("declare exchange %q: %w", name, q.explain(err))
	}
	return nil
}

func (q *Queue) bind(v *visit, queue, exchange string, match amqp.Table) error {
	err := v.do(func(ch *amqp.Channel) error { return ch.QueueBind(queue, "", exchange, false, match) })
	if err != nil {
		return fmt.Errorf("bind queue %q to exchange %q: %w", queue, exchange, q.explain(err))
	}
	return nil
}

// match are the arguments of the binding that leads to a band. The header's name must not start with x-, since x-match
// leaves such headers out.
func (t *topology) match(b band) amqp.Table {
	return amqp.Table{"x-match": "all", headerBand: b.text()}
}

// ParkingQueues returns the names of the parking queues that the policies' backoff can make, in the order of their delays.
// What an error asks for with policy.RetryAfter, and the waits for a dead-letter queue that takes nothing, can add others.
func (q *Queue) ParkingQueues(policies ...policy.Policy) []string {
	var names []string
	for _, b := range q.bandsOf(policies) {
		names = append(names, q.top.parking(b))
	}
	return names
}

// Declare declares the exchanges and, ahead of need, the parking queues of the policies. Nothing has to call it: what is
// missing is declared when the first message needs it. But a queue that was just made takes some ten milliseconds, and one
// whose node is killed within seconds of its making may lose what it holds. It also mends what was deleted by mistake.
func (q *Queue) Declare(ctx context.Context, policies ...policy.Policy) error {
	if q.opts.NoDeclare {
		return q.errorf("declare", errors.New("Options.NoDeclare is set: let somebody who may declare import Queue.Definitions"))
	}
	parts := []part{backPart, gravesPart}
	for _, b := range q.bandsOf(policies) {
		parts = append(parts, part{band: b})
	}
	q.top.forget()
	var errs []error
	for _, err := range q.ensure(ctx, parts...) {
		errs = append(errs, err)
	}
	return q.errorf("declare", errors.Join(errs...))
}

// manyAttempts is how many attempts of a policy are looked at.
const manyAttempts = 1000

// bandsOf returns the bands of all delays that the policies' backoff can choose.
func (q *Queue) bandsOf(policies []policy.Policy) []band {
	used := make([]bool, len(q.ladder))
	var branches []policy.Policy
	for _, p := range policies {
		branches = append(branches, p.Branches()...)
	}
	for _, p := range branches {
		for n := 1; n <= manyAttempts; n++ {
			first, more := extreme(p, n, 0)
			last, _ := extreme(p, n, ^lowest(0))
			if !more {
				break
			}
			if last <= 0 {
				continue
			}
			for i := q.ladder.index(max(first, 1)); i <= q.ladder.index(last); i++ {
				used[i] = true
			}
		}
	}
	var bands []band
	for i, b := range q.ladder {
		if used[i] {
			bands = append(bands, b)
		}
	}
	return bands
}

// lowest is a random source that always draws the same.
type lowest uint64

func (s lowest) Uint64() uint64 { return uint64(s) }

// extreme returns the delay after an attempt if the jitter draws the given number, and whether there is one.
func extreme(p policy.Policy, attempt int, draw lowest) (delay time.Duration, more bool) {
	p.Rand = policy.NewRand(draw)
	d := p.Decide(policy.Failure{Attempt: attempt, Err: errAny})
	return d.Delay, d.Action == policy.ActionRetry
}

var errAny = errors.New("any")

// definitions is the form in which RabbitMQ imports a topology.
type definitions struct {
	Exchanges []exchangeDefinition `json:"exchanges"`
	Queues    []queueDefinition    `json:"queues"`
	Bindings  []bindingDefinition  `json:"bindings"`
}

type exchangeDefinition struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Type       string     `json:"type"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Internal   bool       `json:"internal"`
	Arguments  amqp.Table `json:"arguments"`
}

type queueDefinition struct {
	Name       string     `json:"name"`
	Vhost      string     `json:"vhost"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Arguments  amqp.Table `json:"arguments"`
}

type bindingDefinition struct {
	Source          string     `json:"source"`
	Vhost           string     `json:"vhost"`
	Destination     string     `json:"destination"`
	DestinationType string     `json:"destination_type"`
	RoutingKey      string     `json:"routing_key"`
	Arguments       amqp.Table `json:"arguments"`
}

// Definitions returns all exchanges, parking queues and bindings that this queue may ever use, as the JSON that `rabbitmqctl
// import_definitions` and the management interface take. It is for those who set Options.NoDeclare; set Options.MaxDelay
// then, and perhaps Options.BandsPerDecade, to keep the list short. The work queue and the dead-letter queue are not in it.
func (q *Queue) Definitions() string {
	t, vhost := q.top, q.vhost
	d := definitions{Exchanges: []exchangeDefinition{
		{Name: t.retry, Vhost: vhost, Type: amqp.ExchangeHeaders, Durable: true, Arguments: amqp.Table{}},
		{Name: t.back, Vhost: vhost, Type: amqp.ExchangeFanout, Durable: true, Arguments: amqp.Table{}},
	}}
	bind := func(from, to string, args amqp.Table) {
		d.Bindings = append(d.Bindings, bindingDefinition{Source: from, Vhost: vhost, Destination: to, DestinationType: "queue", Arguments: args})
	}
	bind(t.back, t.queue, amqp.Table{})
	if t.dead != "" {
		d.Exchanges = append(d.Exchanges, exchangeDefinition{Name: t.graves, Vhost: vhost, Type: amqp.ExchangeFanout, Durable: true, Arguments: amqp.Table{}})
		bind(t.graves, t.dead, amqp.Table{})
	}
	for _, b := range q.ladder {
		d.Queues = append(d.Queues, queueDefinition{Name: t.parking(b), Vhost: vhost, Durable: true, Arguments: t.parkingArguments(b)})
		bind(t.retry, t.parking(b), t.match(b))
	}
	doc, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		panic("rabbit: definitions of plain values did not encode: " + err.Error())
	}
	return string(doc) + "\n"
}
