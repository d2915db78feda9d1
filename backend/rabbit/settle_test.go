package rabbit_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
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

// eachType runs a test on both types of queue.
func eachType(t *testing.T, f func(*testing.T, rabbit.Type)) {
	for _, kind := range []rabbit.Type{rabbit.Quorum, rabbit.Classic} {
		t.Run(string(kind), func(t *testing.T) { f(t, kind) })
	}
}

func publish(tb testing.TB, q *rabbit.Queue, ids ...string) {
	tb.Helper()
	var msgs []backend.Message
	for _, id := range ids {
		msgs = append(msgs, backend.Message{ID: id, Body: []byte("body of " + id)})
	}
	require.NoError(tb, q.Publish(context.Background(), msgs...))
}

func ids(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("m%03d", i)
	}
	return list
}

func all(s backend.Settlement, ds []*backend.Delivery) []backend.Settlement {
	batch := make([]backend.Settlement, len(ds))
	for i, d := range ds {
		batch[i] = s
		batch[i].Delivery = d
	}
	return batch
}

func TestADelayIsNeverEarlyAndHardlyLate(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		sub := subscribe(t, q)
		delays := map[string]time.Duration{
			"a": time.Nanosecond, "b": time.Millisecond, "c": 5500 * time.Microsecond, "d": 100 * time.Millisecond, "e": 133 * time.Millisecond, "f": 700 * time.Millisecond,
		}
		for id := range delays {
			publish(t, q, id)
		}
		called := make(map[string]time.Time)
		for _, d := range receive(t, sub, len(delays)) {
			called[d.ID] = time.Now()
			require.NoError(t, settle(sub, d, retry(delays[d.ID])))
		}
		for range delays {
			d := receiveOne(t, sub)
			took := time.Since(called[d.ID])
			require.GreaterOrEqual(t, took, delays[d.ID], d.ID)
			require.Less(t, took, delays[d.ID]+patience/2, d.ID)
			require.NoError(t, settle(sub, d, ack))
		}
	})
}

// In one queue with both the second would come with the first.
func TestAShortWaitIsNotBehindALongOne(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		sub := subscribe(t, q)
		publish(t, q, "a", "b")
		for _, d := range receive(t, sub, 2) {
			delay := 30 * time.Second
			if d.ID == "b" {
				delay = time.Second
			}
			require.NoError(t, settle(sub, d, retry(delay)))
		}
		begun := time.Now()
		require.Equal(t, "b", receiveOne(t, sub).ID)
		require.Less(t, time.Since(begun), 15*time.Second)
	})
}

// A message that waits takes up no place of its consumer, and none of its time.
func TestAWaitTakesUpNoPlace(t *testing.T) {
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		publish(t, q, "fails")
		handled := make(chan string, 100)
		consume(t, &consumer.Consumer{
			Queue: q, Concurrency: 1, Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Hour)},
			Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
				handled <- d.ID
				if d.ID == "fails" {
					return errBoom
				}
				return nil
			}),
		})
		require.Equal(t, "fails", within(t, handled))
		for _, id := range ids(20) {
			publish(t, q, id)
			require.Equal(t, id, within(t, handled))
		}
	})
}

func TestReleasesAreNeverCounted(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		publish(t, q, "m")
		for n := range 15 {
			// Given back by itself, by Close, and by a Receive that nobody follows.
			sub := subscribe(t, q)
			d := receiveOne(t, sub)
			require.Equal(t, [3]int{1, 0, 0}, [3]int{d.Attempt, d.Lapses, d.Snoozes}, "after %d rounds", n)
			require.NoError(t, settle(sub, d, release))
			d = receiveOne(t, sub)
			require.Equal(t, [3]int{1, 0, 0}, [3]int{d.Attempt, d.Lapses, d.Snoozes}, "after %d rounds and a release", n)
			require.NoError(t, sub.Close(t.Context()))
		}
	})
}

func TestAHandlerMayUseTheBrokersOwnMessage(t *testing.T) {
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		sub := subscribe(t, q)
		publish(t, q, "a", "b", "c", "d")
		ds := receive(t, sub, 4)
		raw := func(i int) *rabbit.Message { return ds[i].Raw.(*rabbit.Message) }
		require.ErrorContains(t, raw(1).Ack(true), "not this one's to settle", "it would ack the one before too")
		require.NoError(t, raw(0).Ack(false))
		require.True(t, ds[0].Settled())
		require.ErrorIs(t, settle(sub, ds[0], retry(0)), backend.ErrSettled)
		require.ErrorIs(t, raw(0).Ack(false), backend.ErrSettled)
		require.NoError(t, raw(1).Reject(false))
		require.NoError(t, settle(sub, ds[2], ack))
		require.ErrorIs(t, raw(2).Nack(false, true), backend.ErrSettled)
		require.NoError(t, raw(3).Nack(false, true))
		require.Equal(t, ds[3].ID, receiveOne(t, sub).ID, "the channel is still there")
		requireNothing(t, sub)
	})
}

// What is settled is forgotten, whoever settled it, and however long the delivery before it is held.
func TestWhatIsSettledIsForgotten(t *testing.T) {
	t.Parallel()
	const n = 1000
	for name, settled := range map[string]func(backend.Subscription, *backend.Delivery) error{
		"by Settle":      func(sub backend.Subscription, d *backend.Delivery) error { return settle(sub, d, ack) },
		"by the handler": func(_ backend.Subscription, d *backend.Delivery) error { return d.Raw.(*rabbit.Message).Ack(false) },
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(t, rabbit.Options{Type: rabbit.Classic})
			sub := subscribe(t, q)
			publish(t, q, ids(n)...)
			held := receiveOne(t, sub)
			for range n - 1 {
				require.NoError(t, settled(sub, receiveOne(t, sub)))
			}
			require.Less(t, rabbit.Remembered(sub), n/2)
			require.NoError(t, settle(sub, held, ack))
		})
	}
}

// A handler that acks by itself and then fails leaves nothing to be done.
func TestAConsumerLeavesAloneWhatItsHandlerSettled(t *testing.T) {
	q := queue(t, rabbit.Options{})
	publish(t, q, "a", "b")
	var calls atomic.Int32
	stop := consume(t, &consumer.Consumer{
		Queue: q, Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Millisecond)},
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			calls.Add(1)
			if err := d.Raw.(*rabbit.Message).Ack(false); err != nil {
				return err
			}
			return errBoom
		}),
	})
	require.Eventually(t, func() bool { return calls.Load() == 2 }, patience, 10*time.Millisecond)
	stop()
	requireNothing(t, subscribe(t, q))
	require.EqualValues(t, 2, calls.Load())
}

// consume runs a consumer until the test ends or stop is called.
func consume(t *testing.T, c *consumer.Consumer) (stop func()) {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	var once atomic.Bool
	stop = func() {
		if once.Swap(true) {
			return
		}
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "the consumer did not end")
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestAMessageThatFailedTooOftenDoesNotRun(t *testing.T) {
	q := queue(t, rabbit.Options{})
	send(t, "", q.Name(), amqp.Publishing{MessageId: "m", Headers: amqp.Table{"redeliver-attempt": int32(99)}})
	consume(t, &consumer.Consumer{
		Queue: q, Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Millisecond)},
		Handler: consumer.HandlerFunc(func(context.Context, *backend.Delivery) error {
			t.Error("it ran")
			return nil
		}),
	})
	dead := receiveOne(t, subscribe(t, graves(t, q)))
	require.Equal(t, string(policy.ReasonExhausted), dead.Failure.Reason)
}

// The counts are in headers of this package's own, which the broker leaves alone.
func TestFiveFailuresAreFiveAttempts(t *testing.T) {
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		sub := subscribe(t, q)
		publish(t, q, "m")
		d := receiveOne(t, sub)
		require.NotContains(t, d.Raw.(*rabbit.Message).Headers, "redeliver-attempt")
		for n := 2; n <= 6; n++ {
			require.NoError(t, settle(sub, d, retry(time.Millisecond)))
			d = receiveOne(t, sub)
			require.Equal(t, n, d.Attempt)
			require.Equal(t, int64(n), d.Raw.(*rabbit.Message).Headers["redeliver-attempt"])
		}
	})
}

// replaceQueue declares a queue anew, with arguments.
func replaceQueue(t *testing.T, name string, args amqp.Table) {
	t.Helper()
	url := brokertest.Rabbit(t)
	deleteQueue(t, url, name)
	onChannel(t, url, func(ch *amqp.Channel) {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		require.NoError(t, err)
	})
}

func TestAFullDeadLetterQueueRefusesOneByOne(t *testing.T) {
	q := queue(t, rabbit.Options{})
	replaceQueue(t, q.Name()+"_dlq", amqp.Table{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"})
	sub := subscribe(t, q)
	publish(t, q, ids(5)...)
	ds := receive(t, sub, 5)
	require.NoError(t, settle(sub, ds[0], deadLetter("first")), "the queue is there again, and is bound again")
	batch := all(deadLetter("second"), ds[1:3])
	batch = append(batch, all(ack, ds[3:4])...)
	batch = append(batch, all(retry(0), ds[4:])...)
	err := sub.Settle(t.Context(), batch)
	for i := range 2 {
		require.ErrorContains(t, backend.ErrorAt(err, i), "is full")
		require.NotErrorIs(t, backend.ErrorAt(err, i), backend.ErrUnknown)
	}
	require.NoError(t, backend.ErrorAt(err, 2))
	require.NoError(t, backend.ErrorAt(err, 3))
	require.Equal(t, ds[4].ID, receiveOne(t, sub).ID)

	// They are still held, and can wait in the queue, or go there once there is room.
	await := backend.Settlement{Outcome: backend.Retry, AwaitDeadLetter: true, Failure: deadLetter("second").Failure}
	require.NoError(t, settle(sub, ds[1], await))
	d := receiveOne(t, sub)
	require.Equal(t, 1, d.DeadLetterWaits)
	require.Equal(t, "second", d.Failure.Error)
	graveSub := subscribe(t, graves(t, q))
	require.NoError(t, settle(graveSub, receiveOne(t, graveSub), ack))
	require.Eventually(t, func() bool { return settle(sub, ds[2], deadLetter("third")) == nil }, patience, 10*time.Millisecond)
	require.Equal(t, "third", receiveOne(t, graveSub).Failure.Error)
}

func TestAFullQueueRefusesAPublish(t *testing.T) {
	q := queue(t, rabbit.Options{})
	replaceQueue(t, q.Name(), amqp.Table{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"})
	publish(t, q, "a")
	require.ErrorContains(t, q.Publish(t.Context(), backend.Message{ID: "b"}), "full")
	require.Equal(t, "a", receiveOne(t, subscribe(t, q)).ID)
}

// A frame holds a message's headers, 128 KiB of them, and one that is larger ends the connection.
func TestErrorsOfAnySizeLeaveTheHeadersOfTheMessageAlone(t *testing.T) {
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	user := strings.Repeat("u", 100<<10)
	send(t, "", q.Name(),
		amqp.Publishing{MessageId: "large", Headers: amqp.Table{"user": user}},
		amqp.Publishing{MessageId: "larger", Headers: amqp.Table{"user": user + strings.Repeat("u", 27<<10)}},
		amqp.Publishing{MessageId: "largest", Headers: amqp.Table{"user": user + strings.Repeat("u", 28<<10-60)}},
		amqp.Publishing{MessageId: "small"})
	byID := make(map[string]*backend.Delivery)
	take := func(n int) {
		for _, d := range receive(t, sub, n) {
			byID[d.ID] = d
		}
	}
	huge := &backend.Failure{Reason: "panic", Error: strings.Repeat("ä世", 1<<18), Stack: strings.Repeat("goroutine 1 [running]\n", 1<<16), Attempts: 1}
	take(4)
	err := sub.Settle(t.Context(), []backend.Settlement{
		{Delivery: byID["large"], Outcome: backend.Retry, Failure: huge},
		{Delivery: byID["larger"], Outcome: backend.Retry, Failure: huge},
		{Delivery: byID["largest"], Outcome: backend.Retry, Failure: huge},
		{Delivery: byID["small"], Outcome: backend.DeadLetter, Failure: huge},
	})
	require.NoError(t, backend.ErrorAt(err, 0))
	require.NoError(t, backend.ErrorAt(err, 1))
	require.ErrorIs(t, backend.ErrorAt(err, 2), backend.ErrInvalidMessage, "there is room for no more than it has")
	require.ErrorContains(t, backend.ErrorAt(err, 2), "frame_max")
	require.NoError(t, backend.ErrorAt(err, 3), "one that does not fit takes no other with it")
	take(2)
	require.Equal(t, user, byID["large"].Headers["user"])
	require.Equal(t, 2, byID["larger"].Attempt)
	err = sub.Settle(t.Context(), []backend.Settlement{{Delivery: byID["large"], Outcome: backend.DeadLetter, Failure: huge}})
	require.NoError(t, err)
	graveSub := subscribe(t, graves(t, q))
	for _, d := range receive(t, graveSub, 2) {
		require.True(t, strings.HasPrefix(d.Failure.Error, "ä世ä世"), d.ID)
		if d.ID == "large" {
			require.Equal(t, user, d.Headers["user"])
		}
	}
	require.NoError(t, settle(sub, byID["largest"], ack))
}

func TestWhatWasDeletedIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	url := brokertest.Rabbit(t)
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	publish(t, q, "m")
	d := receiveOne(t, sub)
	again := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool { return settle(sub, d, retry(time.Millisecond)) == nil }, patience, 10*time.Millisecond, what)
		d = receiveOne(t, sub)
	}
	again("nothing")
	deleteQueue(t, url, q.Name()+".retry.v1.10ms")
	again("its parking queue")
	onChannel(t, url, func(ch *amqp.Channel) {
		require.NoError(t, ch.QueueUnbind(q.Name(), "", q.Name()+".retry.return", nil))
	})
	require.NoError(t, settle(sub, d, retry(0)))
	d = receiveOne(t, sub)
	// Not the exchange that leads back: what has been parked when that is missing waits for three minutes more, the interval
	// at which a quorum queue tries again to dead-letter.
	onChannel(t, url, func(ch *amqp.Channel) { require.NoError(t, ch.ExchangeDelete(q.Name()+".retry", false, false)) })
	again("the exchange that leads to the parking queues")
	onChannel(t, url, func(ch *amqp.Channel) { require.NoError(t, ch.ExchangeDelete(q.Name()+".retry.dead", false, false)) })
	require.Eventually(t, func() bool { return settle(sub, d, deadLetter("x")) == nil }, patience, 10*time.Millisecond)
	require.Equal(t, "m", receiveOne(t, subscribe(t, graves(t, q))).ID)
}

func TestADeletedQueueEndsReceive(t *testing.T) {
	eachType(t, func(t *testing.T, kind rabbit.Type) {
		q := queue(t, rabbit.Options{Type: kind})
		sub := subscribe(t, q)
		ended := make(chan error, 1)
		go func() {
			_, err := sub.Receive(context.Background(), 1)
			ended <- err
		}()
		require.Eventually(t, func() bool { return consumers(t, q.Name()) == 1 }, patience, 10*time.Millisecond)
		deleteQueue(t, brokertest.Rabbit(t), q.Name())
		select {
		case err := <-ended:
			require.ErrorIs(t, err, backend.ErrQueueNotFound)
			require.ErrorContains(t, err, q.Name())
		case <-time.After(patience):
			require.Fail(t, "Receive did not end")
		}
		require.ErrorIs(t, q.Publish(t.Context(), backend.Message{}), backend.ErrQueueNotFound)
	})
}

func consumers(t *testing.T, name string) (n int) {
	t.Helper()
	onChannel(t, brokertest.Rabbit(t), func(ch *amqp.Channel) {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		require.NoError(t, err)
		n = q.Consumers
	})
	return n
}

// A deploy may bring another policy, and other options. Nothing that was declared is declared otherwise, and what waits comes back.
func TestAnotherPolicyFindsWhatWaits(t *testing.T) {
	t.Parallel()
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	publish(t, q, "a", "b")
	ds := receive(t, sub, 2)
	require.NoError(t, settle(sub, ds[0], retry(time.Second)))
	require.NoError(t, settle(sub, ds[1], retry(2*time.Second)))
	require.NoError(t, sub.Close(t.Context()))

	other, err := rabbit.Open(brokertest.Rabbit(t), q.Name(), rabbit.Options{BandsPerDecade: 6, MaxDelay: time.Hour})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close(context.Background())) }()
	require.NoError(t, other.Create(t.Context()))
	require.NoError(t, other.Declare(t.Context(), policy.Policy{MaxAttempts: 4, Backoff: policy.Steps{500 * time.Millisecond, time.Second, 2 * time.Second}}))
	sub = subscribe(t, other)
	publish(t, other, "c")
	c := receiveOne(t, sub)
	require.Equal(t, "c", c.ID)
	require.NoError(t, settle(sub, c, retry(time.Second)))
	require.Len(t, receive(t, sub, 3), 3)
}

func TestDeadLettersGoToAnExchangeOfTheUsers(t *testing.T) {
	url := brokertest.Rabbit(t)
	helper := queue(t, rabbit.Options{})
	grave := helper.Name() // some other queue
	exchange := topicFor(t, grave)
	name := "own" + grave
	onChannel(t, url, func(ch *amqp.Channel) {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		require.NoError(t, err)
	})
	t.Cleanup(func() { deleteQueue(t, url, name) })
	q, err := rabbit.Open(url, name, rabbit.Options{DeadLetterQueue: grave, DeadLetterExchange: exchange})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, q.Close(context.Background()))
		remove(t, url, q)
	})
	sub := subscribe(t, q)
	publish(t, q, "m")
	require.NoError(t, settle(sub, receiveOne(t, sub), deadLetter("x")))
	d := receiveOne(t, subscribe(t, helper))
	require.Equal(t, "m", d.ID)
	require.Equal(t, name, d.Raw.(*rabbit.Message).RoutingKey, "the key that it had")

	gone, err := rabbit.Open(url, name, rabbit.Options{DeadLetterQueue: grave, DeadLetterExchange: "nowhere" + grave})
	require.NoError(t, err)
	_, err = gone.Subscribe(t.Context(), backend.SubscribeOptions{})
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, "Options.DeadLetterExchange")
}

// 5,000 messages are more than the library may have unconfirmed at once.
func TestManyMessagesAndLargeOnesInOneCall(t *testing.T) {
	q := queue(t, rabbit.Options{Type: rabbit.Classic})
	msgs := make([]backend.Message, 5000)
	for i := range msgs {
		msgs[i].Body = []byte{byte(i)}
	}
	msgs[17].Body = make([]byte, 3<<20)
	require.NoError(t, q.Publish(t.Context(), msgs...))
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, len(msgs), stats.Ready)
}

// counted is a connection that counts what is written to it at once.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// The library alone writes each message by itself, which costs more than all the rest of sending it.
func TestMessagesAreWrittenTogether(t *testing.T) {
	q := queue(t, rabbit.Options{})
	var writes atomic.Int64
	far, err := rabbit.Open(brokertest.Rabbit(t), q.Name(), rabbit.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return counted{conn, &writes}, err
		},
	})
	require.NoError(t, err)
	publish(t, far, "connects")
	writes.Store(0)
	publish(t, far, ids(640)...)
	require.Less(t, writes.Load(), int64(64), "ten messages and more at once")
	require.NoError(t, far.Close(t.Context()))
}

// What is larger than the broker allows ends the channel, and is refused alone.
func TestAMessageThatIsTooLargeIsRefusedAlone(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	s.Ctl("eval", "application:set_env(rabbit, max_message_size, 2000000).")
	q := queueAt(t, s.URL(), rabbit.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := q.Publish(ctx, backend.Message{ID: "a"}, backend.Message{ID: "b", Body: make([]byte, 3<<20)}, backend.Message{ID: "c"})
	require.ErrorIs(t, err, backend.ErrInvalidMessage)
	require.ErrorContains(t, err, `"b"`)
	require.ErrorContains(t, err, "max_message_size")
	var got []string
	for _, d := range receive(t, subscribe(t, q), 2) {
		got = append(got, d.ID)
	}
	require.ElementsMatch(t, []string{"a", "c"}, got, "none of those beside it is sent twice or lost")
}

func TestStatsTellWhatThereIs(t *testing.T) {
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	publish(t, q, ids(6)...)
	ds := receive(t, sub, 6)
	require.NoError(t, sub.Settle(t.Context(), append(all(retry(time.Hour), ds[:2]), all(deadLetter("x"), ds[2:5])...)))
	require.NoError(t, settle(sub, ds[5], ack))
	publish(t, q, "ready")
	require.NoError(t, sub.Close(t.Context()))
	require.Eventually(t, func() bool {
		st, err := q.Stats(t.Context())
		require.NoError(t, err)
		return st == backend.Stats{Ready: 1, Waiting: 2, Dead: 3}
	}, patience, 20*time.Millisecond)
	replaceQueue(t, q.Name()+"_dlq", nil)
	deleteQueue(t, brokertest.Rabbit(t), q.Name()+"_dlq")
	_, err := q.Stats(t.Context())
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
}
