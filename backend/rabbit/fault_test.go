package rabbit_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

// through opens the same queue once more, over a link that the test can cut.
func through(t *testing.T, link *brokertest.Link, q *rabbit.Queue, opts rabbit.Options) *rabbit.Queue {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	other, err := rabbit.Open(link.URL(), q.Name(), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = other.Close(ctx)
	})
	return other
}

// dialer returns a Dial by which connections go around a link, to the broker itself, while direct is set.
func dialer(t *testing.T, direct *atomic.Bool) func(ctx context.Context, network, address string) (net.Conn, error) {
	t.Helper()
	broker, err := url.Parse(brokertest.Rabbit(t))
	require.NoError(t, err)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if direct.Load() {
			address = broker.Host
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// Wherever the link is cut, the message is there, once or more often.
func TestNothingIsLostWhereverTheLinkIsCut(t *testing.T) {
	t.Parallel()
	// After how many bytes to cut: of what a settlement sends, and of what it receives.
	all := map[brokertest.Direction][]int64{
		brokertest.ToBroker:   {0, 30, 60, 120, 250, 400, 500, 550, 600, 650, 700, 750, 800},
		brokertest.FromBroker: {0, 1, 20, 21, 22, 40},
	}
	some := map[brokertest.Direction][]int64{brokertest.ToBroker: {0, 10, 21, 300}, brokertest.FromBroker: {0, 21}}
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		link := brokertest.Proxy(t, brokertest.Rabbit(t))
		far := through(t, link, q, rabbit.Options{})
		near := subscribe(t, q)
		dead := subscribe(t, graves(t, q))
		duplicates := 0
		for _, c := range []struct {
			backend.Settlement
			steps map[brokertest.Direction][]int64
		}{{retry(10 * time.Millisecond), all}, {deadLetter("x"), all}, {release, some}, {ack, some}} {
			// Once uncut, so that everything is connected and declared.
			publish(t, q, "first")
			sub := subscribe(t, far)
			require.NoError(t, settle(sub, receiveOne(t, sub), c.Settlement))
			for direction, bytes := range c.steps {
				for _, n := range bytes {
					id := fmt.Sprintf("%s, cut at %d of %d", c.Outcome, n, direction)
					publish(t, q, id)
					d := receiveOne(t, sub)
					for d.ID != id {
						require.NoError(t, settle(sub, d, ack))
						d = receiveOne(t, sub)
					}
					link.CutAfter(direction, n)
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					st := c.Settlement
					st.Delivery = d
					err := sub.Settle(ctx, []backend.Settlement{st})
					cancel()
					link.Restore() // less may have been sent than that
					link.Cut()
					duplicates += checkThere(t, id, c.Outcome, err, near, dead)
				}
			}
			require.NoError(t, sub.Close(t.Context()))
		}
		t.Log("duplicates:", duplicates)
	})
}

// The steps of a retry that come before and after the settlement's own: a parking queue is made, a confirmation stays out, the
// message waits, and it is delivered again.
func TestNothingIsLostWhenTheLinkIsCutAroundARetry(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		link := brokertest.Proxy(t, brokertest.Rabbit(t))
		far := through(t, link, q, rabbit.Options{})
		sub := subscribe(t, far)
		// delivery takes out all that comes until it is an attempt at a message: an ack that was cut off leaves a duplicate.
		delivery := func(id string, attempt int) *backend.Delivery {
			t.Helper()
			for {
				d := receiveOne(t, sub)
				if d.ID == id && d.Attempt == attempt {
					return d
				}
				_ = settle(sub, d, ack) // if that fails it comes again
			}
		}
		held := func(id string) *backend.Delivery {
			t.Helper()
			publish(t, q, id)
			return delivery(id, 1)
		}
		whole := func(id string) {
			t.Helper()
			d := delivery(id, 2)
			require.LessOrEqual(t, d.Lapses, 1)
			for settle(sub, d, ack) != nil {
				d = delivery(id, 2)
			}
		}
		require.NoError(t, settle(sub, held("connected"), retry(0)))
		whole("connected")

		t.Run("while it waits", func(t *testing.T) {
			require.NoError(t, settle(sub, held("waits"), retry(300*time.Millisecond)))
			link.Refuse()
			link.Cut()
			require.Eventually(t, func() bool { return ready(t, q) > 0 }, patience, 10*time.Millisecond, "it comes back to nobody")
			link.Restore()
			whole("waits")
		})
		for _, n := range []int64{0, 12, 40, 80, 150, 250, 400} {
			id := fmt.Sprintf("delivered again, cut at %d", n)
			require.NoError(t, settle(sub, held(id), retry(50*time.Millisecond)), id)
			link.CutAfter(brokertest.FromBroker, n)
			whole(id)
			link.Restore()
		}
		require.NoError(t, sub.Close(t.Context()))

		near := subscribe(t, q)
		sub = subscribe(t, far)
		t.Run("while its confirmation stays out", func(t *testing.T) {
			d := held("held")
			link.Hold(brokertest.FromBroker)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			st := retry(10 * time.Millisecond)
			st.Delivery = d
			err := sub.Settle(ctx, []backend.Settlement{st})
			require.Error(t, err, "nothing is acked that is not confirmed")
			require.False(t, d.Settled())
			link.Cut()
			link.Restore()
			checkThere(t, "held", st.Outcome, err, near, nil)
		})
		// A band of its own each time, which is declared then, over a connection of its own.
		for i, n := range []int64{0, 8, 250, 400, 500, 550, 600, 700, 800, 900, 1000, 1100} {
			id := fmt.Sprintf("its parking queue is declared, cut at %d", n)
			d := held(id)
			delay := 20 * time.Millisecond
			for range i {
				delay = q.BandLimit(delay + 1)
			}
			link.CutAfter(brokertest.ToBroker, n)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			st := retry(delay)
			st.Delivery = d
			err := sub.Settle(ctx, []backend.Settlement{st})
			cancel()
			link.Restore()
			link.Cut()
			checkThere(t, id, st.Outcome, err, near, nil)
		}
	})
}

// ready is how many messages of a queue nobody holds.
func ready(t *testing.T, q *rabbit.Queue) int {
	t.Helper()
	st, err := q.Stats(t.Context())
	require.NoError(t, err)
	return int(st.Ready)
}

// checkThere looks for a message after a settlement that was perhaps cut off, takes all copies of it, and returns how many too
// many there were.
func checkThere(t *testing.T, id string, outcome backend.Outcome, err error, near, dead backend.Subscription) (duplicates int) {
	t.Helper()
	require.NotErrorIs(t, err, backend.ErrSettled, id)
	deadline := time.Now().Add(patience)
	found := 0
	look := func(sub backend.Subscription, quiet time.Duration) {
		for {
			ds, err := receiveFor(sub, quiet)
			if err != nil {
				return
			}
			for _, d := range ds {
				require.NoError(t, settle(sub, d, ack))
				if d.ID == id {
					found++
					require.LessOrEqual(t, d.Attempt, 2, id)
				}
			}
		}
	}
	look(near, 60*time.Millisecond)
	if outcome == backend.DeadLetter {
		look(dead, 60*time.Millisecond)
	}
	if outcome == backend.Ack {
		return found
	}
	for found == 0 && time.Now().Before(deadline) {
		look(near, 20*time.Millisecond)
		if outcome == backend.DeadLetter {
			look(dead, 20*time.Millisecond)
		}
	}
	require.GreaterOrEqual(t, found, 1, "%s: %v", id, err)
	return found - 1
}

func TestACutLinkLapsesWhatIsHeldAndNothingElse(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		link := brokertest.Proxy(t, brokertest.Rabbit(t))
		far := through(t, link, q, rabbit.Options{})
		sub := subscribe(t, far)
		publish(t, q, "a", "b")
		held := receive(t, sub, 2)
		lost := make(chan string, 2)
		for _, d := range held {
			d.OnLost(func() { lost <- d.ID })
		}
		link.Cut()
		require.ElementsMatch(t, []string{"a", "b"}, []string{within(t, lost), within(t, lost)})
		again := receive(t, sub, 2) // by itself, over another connection
		for _, d := range again {
			require.Equal(t, 1, d.Lapses)
			require.Equal(t, 1, d.Attempt)
		}
		// The tags of the old connection mean other messages to the new one.
		for _, s := range []backend.Settlement{ack, retry(0), deadLetter("x"), release} {
			require.ErrorIs(t, settle(sub, held[0], s), backend.ErrLeaseLost)
		}
		require.Error(t, held[1].Raw.(*rabbit.Message).Ack(false))
		require.ErrorIs(t, sub.Extend(t.Context(), held), backend.ErrLeaseLost)
		require.NoError(t, sub.Extend(t.Context(), again))
		require.NoError(t, sub.Settle(t.Context(), all(ack, again)), "the channel is still there")
		requireNothing(t, sub)
	})
}

// The connection that publishes is lost alone, before a copy is there or before that is known. The message is held as before, so
// that it can be settled again: the outcome was unknown, and no lease was lost.
func TestALostPublishingConnectionCostsNoLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut    func(*brokertest.Link)
		copies int
	}{
		"before the copy is there": {func(l *brokertest.Link) { l.CutAfter(brokertest.ToBroker, 1) }, 1},
		"before that is known":     {func(l *brokertest.Link) { l.CutAfter(brokertest.FromBroker, 0) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			eachType(t, func(t *testing.T, kind rabbit.Type) {
				q := queue(t, rabbit.Options{Type: kind})
				link := brokertest.Proxy(t, brokertest.Rabbit(t))
				var direct atomic.Bool
				far := through(t, link, q, rabbit.Options{Dial: dialer(t, &direct)})
				direct.Store(true)
				sub, dead := subscribe(t, far), subscribe(t, graves(t, q))
				publish(t, q, "m")
				d := receiveOne(t, sub)
				direct.Store(false)
				require.NoError(t, settle(sub, d, deadLetter("so that these are connected too")))
				require.NoError(t, settle(dead, receiveOne(t, dead), ack))
				for _, st := range []backend.Settlement{deadLetter("x"), retry(0), retry(10 * time.Millisecond)} {
					publish(t, far, "m")
					d := receiveOne(t, sub)
					require.NoError(t, far.Declare(t.Context(), policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(10 * time.Millisecond)}))
					c.cut(link)

					err := settle(sub, d, st)
					require.ErrorIs(t, err, backend.ErrUnknown)
					require.NotErrorIs(t, err, backend.ErrLeaseLost)
					require.NoError(t, sub.Extend(t.Context(), []*backend.Delivery{d}), "it is held")
					require.NoError(t, settle(sub, d, st))

					target, attempt := sub, 2
					if st.Outcome == backend.DeadLetter {
						target, attempt = dead, 1
					}
					for _, d := range receive(t, target, c.copies) {
						require.Equal(t, [2]any{"m", attempt}, [2]any{d.ID, d.Attempt})
						if kind == rabbit.Classic { // a quorum queue may count one for a consumer that ends
							require.Zero(t, d.Lapses)
						}
						require.NoError(t, settle(target, d, ack))
					}
					requireNothing(t, sub)
					requireNothing(t, dead)
				}
				require.NoError(t, sub.Close(t.Context()))
				require.Zero(t, ready(t, q), "the originals are gone")
			})
		})
	}
}

func within[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		require.Fail(t, "nothing came")
	}
	return v
}

// A peer that is gone without a word is found out by its silence.
func TestASilentLinkIsTakenForDead(t *testing.T) {
	t.Parallel()
	q := queue(t, rabbit.Options{})
	link := brokertest.Proxy(t, brokertest.Rabbit(t))
	far := through(t, link, q, rabbit.Options{Heartbeat: time.Second})
	sub := subscribe(t, far)
	publish(t, q, "m")
	d := receiveOne(t, sub)
	lost := make(chan struct{})
	d.OnLost(func() { close(lost) })
	link.Hold(brokertest.FromBroker)
	link.Hold(brokertest.ToBroker)
	within(t, lost)
	link.Cut()
	link.Restore()
	require.Equal(t, 1, receiveOne(t, sub).Lapses)
}

// While a broker is slow to confirm the copy that counts a lapse, it is not sent another.
func TestALapseIsCountedInOneCopyHoweverSlowTheBroker(t *testing.T) {
	t.Parallel()
	q := queue(t, rabbit.Options{Type: rabbit.Classic})
	link := brokertest.Proxy(t, brokertest.Rabbit(t))
	var direct atomic.Bool
	far := through(t, link, q, rabbit.Options{Heartbeat: time.Minute, Dial: dialer(t, &direct)})
	publish(t, far, "m") // over the connection that copies will go by
	require.NoError(t, far.Declare(t.Context()))
	direct.Store(true)
	near := subscribe(t, q)
	receiveOne(t, near)
	link.Hold(brokertest.FromBroker)
	rabbit.Crash(near)

	sub := subscribe(t, far)
	d := receiveOne(t, sub)
	require.Equal(t, 1, d.Lapses)
	ds, err := receiveFor(sub, 8*time.Second) // for longer than one try takes
	require.ErrorIs(t, err, errTimeout, "%d more copies", len(ds))
	require.NoError(t, settle(sub, d, ack))
	link.Restore()
	requireNothing(t, sub)
	require.NoError(t, sub.Close(t.Context()))
	require.Zero(t, ready(t, q), "the original is acked once its copy is confirmed")
}

// While the broker is told to end a consumer acks are kept back. If it does not answer, a settlement still ends with its
// context, and can be tried again.
func TestASettlementEndsWithItsContextWhileAConsumerEnds(t *testing.T) {
	t.Parallel()
	q := queue(t, rabbit.Options{})
	link := brokertest.Proxy(t, brokertest.Rabbit(t))
	var direct atomic.Bool
	direct.Store(true)
	far := through(t, link, q, rabbit.Options{Heartbeat: time.Minute, Dial: dialer(t, &direct)})
	publish(t, far, "a", "b") // over the connection that copies will go by
	require.NoError(t, far.Declare(t.Context()))
	direct.Store(false)
	sub := subscribe(t, far)
	var held []*backend.Delivery
	for len(held) < 2 {
		ds, err := receiveFor(sub, patience) // asks for more than there is
		require.NoError(t, err)
		held = append(held, ds...)
	}
	link.Hold(brokertest.FromBroker)
	require.Eventually(t, func() bool { return rabbit.Shut(sub) }, patience, time.Millisecond)
	for i, st := range []backend.Settlement{ack, retry(0)} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		begun := time.Now()
		st.Delivery = held[i]
		err := sub.Settle(ctx, []backend.Settlement{st})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, backend.ErrLeaseLost)
		require.Less(t, time.Since(begun), patience/2)
	}
	link.Restore()
	require.NoError(t, settle(sub, held[0], ack))
	require.NoError(t, settle(sub, held[1], retry(0)))
	d := receiveOne(t, sub)
	require.Equal(t, [3]any{held[1].ID, 2, 0}, [3]any{d.ID, d.Attempt, d.Lapses})
	requireNothing(t, sub)
}

// clogged is a connection to a broker that does not read, while full is set.
type clogged struct {
	net.Conn
	full   *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *clogged) Write(p []byte) (int, error) {
	if c.full.Load() {
		<-c.closed
	}
	return c.Conn.Write(p)
}

func (c *clogged) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Where a broker does not read from the connection that acks go by, they hold up neither one another nor what is received.
func TestABrokerThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	q := queue(t, rabbit.Options{})
	var full atomic.Bool
	far, err := rabbit.Open(brokertest.Rabbit(t), q.Name(), rabbit.Options{
		Heartbeat: time.Minute, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &clogged{Conn: conn, full: &full, closed: make(chan struct{})}, err
		},
	})
	require.NoError(t, err)
	publish(t, q, ids(20)...)
	sub := subscribe(t, far)
	held := receive(t, sub, 10)
	full.Store(true)
	done := make(chan error, 1)
	go func() {
		for _, d := range held {
			if err := settle(sub, d, ack); err != nil {
				done <- err
				return
			}
		}
		_, _ = receiveFor(sub, time.Millisecond)
		done <- nil
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "a settlement hangs, or a Receive")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = far.Close(ctx)
	again := subscribe(t, q)
	for _, d := range receive(t, again, 20) {
		require.NoError(t, settle(again, d, ack), "an ack that did not arrive leaves the message where it was")
	}
}

// A message that takes its consumer's connection down each time comes to an end, and the others do not suffer.
func TestAMessageThatKillsItsConsumerIsAbandoned(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		link := brokertest.Proxy(t, brokertest.Rabbit(t))
		far := through(t, link, q, rabbit.Options{})
		publish(t, q, append(ids(5), "poison")...)
		var ran, handled atomic.Int32
		consume(t, &consumer.Consumer{
			Queue: far, Concurrency: 1, // so that the others are not held when it strikes
			Policy: policy.Policy{MaxAttempts: 3, MaxLapses: 2, Backoff: policy.Fixed(time.Millisecond)},
			Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
				if d.ID != "poison" {
					handled.Add(1)
					return nil
				}
				ran.Add(1)
				link.Cut()
				<-ctx.Done()
				return context.Cause(ctx)
			}),
		})
		dead := receiveOne(t, subscribe(t, graves(t, q)))
		require.Equal(t, "poison", dead.ID)
		require.Equal(t, string(policy.ReasonAbandoned), dead.Failure.Reason)
		require.Equal(t, 3, dead.Failure.Lapses)
		require.EqualValues(t, 3, ran.Load())
		require.Eventually(t, func() bool { return handled.Load() >= 5 }, patience, 10*time.Millisecond)
	})
}

// filled is a message whose headers leave so much room in their frame.
func filled(id string, room int) amqp.Publishing {
	const frameMax = 128 << 10
	msg := amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, Headers: amqp.Table{"fill": ""}}
	msg.Headers["fill"] = strings.Repeat("x", frameMax-room-rabbit.HeaderFrameSize(msg))
	return msg
}

// Where a message's headers leave no room for counts, or for the record of a failure, it comes to an end too, and is whole.
func TestAMessageThatFillsItsFrameComesToAnEnd(t *testing.T) {
	t.Parallel()
	type variant struct {
		kind rabbit.Type
		room int
	}
	for v, want := range map[variant]struct {
		ran    int32 // calls of the handler
		record bool
	}{
		{rabbit.Classic, 0}:    {1, false}, // it was not to run when its lapses could not be counted
		{rabbit.Classic, 30}:   {3, false},
		{rabbit.Classic, 100}:  {3, false},
		{rabbit.Classic, 1500}: {3, true},
		{rabbit.Quorum, 100}:   {3, false},
		{rabbit.Quorum, 1500}:  {3, true},
	} {
		t.Run(fmt.Sprint(v.kind, v.room), func(t *testing.T) {
			q := queue(t, rabbit.Options{Type: v.kind})
			link := brokertest.Proxy(t, brokertest.Rabbit(t))
			far := through(t, link, q, rabbit.Options{})
			msg := filled("poison", v.room)
			send(t, "", q.Name(), msg)
			for range 3 { // given back, which counts for nothing
				sub := subscribe(t, far)
				d := receiveOne(t, sub)
				require.Zero(t, d.Lapses)
				require.NoError(t, settle(sub, d, release))
				require.NoError(t, sub.Close(t.Context()))
			}
			var ran atomic.Int32
			consume(t, &consumer.Consumer{
				Queue: far, Concurrency: 1, Policy: policy.Policy{MaxAttempts: 3, MaxLapses: 2, Backoff: policy.Fixed(time.Millisecond)},
				Handler: consumer.HandlerFunc(func(ctx context.Context, _ *backend.Delivery) error {
					ran.Add(1)
					link.Cut()
					<-ctx.Done()
					return context.Cause(ctx)
				}),
			})
			dead := receiveOne(t, subscribe(t, graves(t, q)))
			require.Equal(t, want.ran, ran.Load())
			require.Equal(t, "poison", dead.ID)
			require.Equal(t, map[string]string{"fill": msg.Headers["fill"].(string)}, dead.Headers)
			if !want.record {
				require.Nil(t, dead.Failure)
				return
			}
			require.Equal(t, string(policy.ReasonAbandoned), dead.Failure.Reason)
			require.Equal(t, 3, dead.Failure.Lapses)
		})
	}
}

// A quorum queue counts lapses in a header that it adds, for which there may be no room. Nobody can take the message then, nor
// what is behind it, until somebody raises the limit; but it is the only one that lapses meanwhile.
func TestAMessageThatHasBecomeTooLargeIsTold(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	var logged log
	q := queueAt(t, s.URL(), rabbit.Options{Logger: logged.logger()})
	onChannel(t, s.URL(), func(ch *amqp.Channel) {
		require.NoError(t, ch.Publish("", q.Name(), false, false, filled("large", 0)))
	})
	sub := subscribe(t, q)
	require.Equal(t, "large", receiveOne(t, sub).ID)
	s.CloseConnections()
	told := func(n int) {
		for strings.Count(logged.String(), "raise the broker's frame_max") < n {
			ds, err := receiveFor(sub, 200*time.Millisecond)
			require.ErrorIs(t, err, errTimeout, "%d came", len(ds))
		}
	}
	told(1)
	publish(t, q, ids(5)...)
	told(4)

	s.Ctl("eval", "application:set_env(rabbit, frame_max, 262144).")
	for range 6 {
		d := receiveOne(t, sub)
		require.Equal(t, d.ID == "large", d.Lapses > 0, "%s: %d lapses", d.ID, d.Lapses)
		require.NoError(t, settle(sub, d, ack))
	}
}

func TestMessagesOutliveManyCuts(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		const count, cuts = 10, 21 // one more than RabbitMQ 4 allows where nobody says otherwise
		opts := rabbit.Options{Type: kind}
		if kind == rabbit.Quorum {
			opts.Arguments = map[string]any{"x-delivery-limit": 100}
		}
		q := queue(t, opts)
		link := brokertest.Proxy(t, brokertest.Rabbit(t))
		far := through(t, link, q, rabbit.Options{})
		sub := subscribe(t, far)
		publish(t, q, ids(count)...)
		for n := range cuts + 1 {
			seen := make(map[string]bool)
			for len(seen) < count {
				d := receiveOne(t, sub)
				seen[d.ID] = true
				require.Equal(t, 1, d.Attempt)
				require.LessOrEqual(t, d.Lapses, n, d.ID)
				if kind == rabbit.Quorum {
					require.Equal(t, n, d.Lapses, d.ID)
				}
				if n == cuts {
					require.NoError(t, settle(sub, d, ack))
				}
			}
			if n < cuts {
				link.Cut()
			}
		}
		// Lapses are counted in copies on classic queues, of which a cut may leave two.
		if kind == rabbit.Quorum {
			requireNothing(t, sub)
		}
	})
}

// Close returns in time, whatever hangs, and leaves nothing running.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	q := queue(t, rabbit.Options{})
	for name, trouble := range map[string]func(*brokertest.Link){
		"nothing":           func(*brokertest.Link) {},
		"a cut":             func(l *brokertest.Link) { l.Refuse(); l.Cut() },
		"a silent broker":   func(l *brokertest.Link) { l.Hold(brokertest.FromBroker) },
		"an unheard client": func(l *brokertest.Link) { l.Hold(brokertest.ToBroker) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, q.Close(t.Context())) // its connections are of no interest
			before := ours()
			link := brokertest.Proxy(t, brokertest.Rabbit(t))
			far, err := rabbit.Open(link.URL(), q.Name(), rabbit.Options{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			publish(t, far, ids(20)...)
			var work sync.WaitGroup
			subs := []backend.Subscription{subscribe(t, far), subscribe(t, far), subscribe(t, far)}
			held := receive(t, subs[0], 5)
			settling := receive(t, subs[1], 5)
			receive(t, subs[2], 1)
			work.Go(func() {
				for {
					if _, err := subs[2].Receive(context.Background(), 1); err != nil {
						return
					}
				}
			})
			trouble(link)
			// Closed while settlements are under way, publishings too large for any buffer among them.
			work.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = subs[1].Settle(ctx, append(all(retry(time.Hour), settling[:3]), all(deadLetter("x"), settling[3:])...))
			})
			work.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = far.Publish(ctx, backend.Message{Body: make([]byte, 8<<20)}, backend.Message{Body: make([]byte, 8<<20)})
			})
			work.Go(func() { _, _ = far.Stats(t.Context()) })
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			begun := time.Now()
			err = far.Close(ctx)
			require.Less(t, time.Since(begun), patience)
			if name == "nothing" {
				require.NoError(t, err)
			}
			link.Refuse()
			link.Cut()
			work.Wait()
			require.NoError(t, far.Close(context.Background()), "closing again does nothing")
			require.ErrorIs(t, far.Publish(context.Background(), backend.Message{}), backend.ErrClosed)
			_, err = far.Subscribe(context.Background(), backend.SubscribeOptions{})
			require.ErrorIs(t, err, backend.ErrClosed)
			require.ErrorIs(t, settle(subs[0], held[0], ack), backend.ErrClosed)
			deadline := time.Now().Add(patience)
			for len(ours()) > len(before) && time.Now().Before(deadline) {
				runtime.Gosched()
				time.Sleep(time.Millisecond)
			}
			require.LessOrEqual(t, len(ours()), len(before), "%s", strings.Join(ours(), "\n\n"))
		})
	}
}

// ours returns the stacks of the goroutines of this package and of the library beneath it.
func ours() (stacks []string) {
	buf := make([]byte, 8<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "backend/rabbit.") || strings.Contains(stack, "amqp091-go") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// log takes what is logged.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *log) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A broker that is short of memory stops reading from those who publish. Their copies wait, each is sent once, and acks go on.
func TestABlockedBrokerIsWaitedOut(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	var logged log
	q := queueAt(t, s.URL(), rabbit.Options{Logger: logged.logger()})
	sub := subscribe(t, q)
	publish(t, q, ids(6)...)
	ds := receive(t, sub, 6)
	require.NoError(t, settle(sub, ds[0], retry(0)), "so that there is a connection that has published")
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))

	s.BlockPublishers()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		batch := append(all(retry(0), ds[1:3]), all(deadLetter("x"), ds[3:4])...)
		err := sub.Settle(ctx, append(batch, all(retry(0), ds[4:5])...))
		cancel()
		for i := range 4 {
			require.ErrorIs(t, backend.ErrorAt(err, i), context.DeadlineExceeded)
			require.NotErrorIs(t, backend.ErrorAt(err, i), backend.ErrLeaseLost)
		}
	}
	require.Contains(t, logged.String(), "takes no publishings")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, q.Publish(ctx, backend.Message{ID: "never"}), "blocked", "it says why nothing was sent")
	require.NoError(t, settle(sub, ds[5], ack), "acks do not wait for the alarm")

	s.UnblockPublishers()
	require.NoError(t, sub.Settle(t.Context(), append(all(retry(0), ds[1:3]), all(deadLetter("x"), ds[3:4])...)))
	require.NoError(t, settle(sub, ds[4], retry(0)))
	got := receive(t, sub, 3)
	require.NoError(t, sub.Settle(t.Context(), all(ack, got)))
	requireNothing(t, sub)
	for _, d := range got {
		require.Equal(t, 2, d.Attempt)
	}
	require.Eventually(t, func() bool {
		st, err := q.Stats(t.Context())
		return err == nil && st == backend.Stats{Dead: 1}
	}, patience, 20*time.Millisecond, "one copy each, although it was tried four times")
	require.Contains(t, logged.String(), "takes publishings again")
}

func TestWhatWaitsOutlivesARestart(t *testing.T) {
	t.Parallel()
	const (
		down  = 2 * time.Second // come due while the broker is down
		later = 20 * time.Second
	)
	s := brokertest.PrivateRabbit(t)
	type side struct {
		sub    backend.Subscription
		held   []*backend.Delivery
		delays map[string]time.Duration
	}
	var sides []side
	begun := time.Now()
	for _, kind := range []rabbit.Type{rabbit.Quorum, rabbit.Classic} {
		q := queueAt(t, s.URL(), rabbit.Options{Type: kind, Logger: slog.New(slog.DiscardHandler)})
		sub := subscribe(t, q)
		publish(t, q, ids(30)...)
		ds := receive(t, sub, 30)
		delays := make(map[string]time.Duration)
		var batch []backend.Settlement
		for i, d := range ds[:20] {
			st := retry(down)
			if i%2 == 0 {
				st = retry(later)
			}
			st.Delivery = d
			delays[d.ID] = st.Delay
			batch = append(batch, st)
		}
		require.NoError(t, sub.Settle(t.Context(), batch))
		sides = append(sides, side{sub, ds[20:], delays})
	}
	s.Restart()
	// Where a queue is not back yet when the broker hands on to it what came due meanwhile, it tries again after three minutes.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	for _, side := range sides {
		// The subscription comes back by itself. What was held when the broker went is a lapse older.
		seen := make(map[string]bool)
		for len(seen) < 30 {
			ds, err := side.sub.Receive(ctx, 1)
			require.NoError(t, err, "%d came", len(seen))
			d := ds[0]
			require.False(t, seen[d.ID], d.ID)
			seen[d.ID] = true
			if delay, waited := side.delays[d.ID]; waited {
				require.GreaterOrEqual(t, time.Since(begun), delay)
				require.Equal(t, [2]int{2, 0}, [2]int{d.Attempt, d.Lapses})
			} else {
				require.Equal(t, [2]int{1, 1}, [2]int{d.Attempt, d.Lapses})
			}
			require.NoError(t, settle(side.sub, d, ack))
		}
		require.ErrorIs(t, settle(side.sub, side.held[0], ack), backend.ErrLeaseLost)
		requireNothing(t, side.sub)
	}
}

func TestConnectionsThatTheBrokerClosesAreMadeAnew(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	q := queueAt(t, s.URL(), rabbit.Options{Logger: slog.New(slog.DiscardHandler)})
	sub := subscribe(t, q)
	publish(t, q, "m")
	d := receiveOne(t, sub)
	require.NoError(t, settle(sub, d, retry(0)))
	receiveOne(t, sub)
	s.CloseConnections()
	d = receiveOne(t, sub)
	require.Equal(t, [2]int{2, 1}, [2]int{d.Attempt, d.Lapses})
	require.Eventually(t, func() bool { return settle(sub, d, retry(0)) == nil }, patience, 10*time.Millisecond)
	require.Equal(t, 3, receiveOne(t, sub).Attempt)
}

func TestABrokerThatIsNotThereIsToldAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	q, err := rabbit.Open("amqp://guest:secretword@"+l.Addr().String()+"/", "orders", rabbit.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer func() { require.NoError(t, q.Close(context.Background())) }()
	_, err = q.Subscribe(t.Context(), backend.SubscribeOptions{})
	require.ErrorContains(t, err, "refused")
	require.NotContains(t, err.Error(), "secretword")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = q.Publish(ctx, backend.Message{})
	require.ErrorContains(t, err, "refused")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, backend.ErrUnknown, "nothing was sent")
}
