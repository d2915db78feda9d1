package pgmq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend"
)

// endTime bounds the end of a transaction, which its handler's context does not: a COMMIT that is cut off leaves nobody
// knowing what it did.
const endTime = 30 * time.Second

// abandonTime is less than a consumer that shuts down waits for handlers that it has cancelled.
const abandonTime = 2 * time.Second

// InTx returns a handler that runs handle in a transaction of the queue's database, in which the message has left the queue
// already. What handle does through tx and the removal of the message take effect together or not at all, so that its effects
// happen exactly once. It is given to a consumer as consumer.HandlerFunc(pgmq.InTx(handle)).
//
// If handle returns nil, the transaction is committed and the delivery is settled. If it returns an error, panics, or
// returns nil although a statement has failed, all is rolled back, and the consumer settles the failure as its policy
// decides; the retry is counted and keeps its delay however long handle took. InTx ends the transaction, and tx.Commit and
// tx.Rollback are refused.
//
// The lock on the message's row is the lease: other consumers pass the message by until the transaction ends, and nothing is
// extended, however long handle runs. When the connection breaks, the server rolls back: that is a failure, or a lapse where
// this process died with it. Where the network breaks silently the server may notice late, so InTx has it end a transaction
// that was idle for as long as handle's context had left at its start, which is Consumer.Timeout; a server that sets
// idle_in_transaction_session_timeout has its own way.
//
// If the connection breaks in COMMIT, InTx looks whether the message is still there. If that cannot be told, the error
// matches backend.ErrUnknown. What the consumer settles then does no harm: it finds out what became of the transaction
// first, and where that was committed, it is backend.ErrSettled and changes nothing.
//
// Behind a pooler in transaction mode that does not follow prepared statements, the pool needs pgx.QueryExecModeCacheDescribe
// as its ConnConfig.DefaultQueryExecMode, for what handle sends as well.
//
// Each running handler holds a connection of the queue's pool, and the server's vacuum removes no row that a transaction
// that is still open may have to see. So handle should do work in the database and little else: Consumer.Concurrency has to
// stay below the pool's size, and Consumer.Timeout be short. Effects outside of the transaction, a mail for example, are no
// more exact than elsewhere; send a message for them with Queue.PublishTx.
func InTx(handle func(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error) func(context.Context, *backend.Delivery) error {
	if handle == nil {
		return nil // which the consumer refuses
	}
	return func(ctx context.Context, d *backend.Delivery) error {
		m, err := claimedMessage(d)
		if err != nil {
			return err
		}
		// A connection may have to be waited for, so heartbeats go on until it is here.
		conn, err := m.sub.queue.pool.Acquire(ctx)
		if err != nil {
			return m.errorf(d, "begin a transaction", err)
		}
		defer conn.Release()
		tx, err := conn.Begin(ctx)
		if err != nil {
			return m.errorf(d, "begin a transaction", m.sub.queue.explain(err))
		}
		t := &transaction{conn: conn, tx: tx, delivery: d, message: m}
		return t.run(ctx, handle)
	}
}

// CompleteTx takes a message out of its queue in a transaction of the handler's own, to which it belongs from then on as
// with InTx: call it first, then do the work, then commit, and return nil only after that.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := pgmq.CompleteTx(ctx, tx, d); err != nil {
//			return err
//		}
//		return work(ctx, tx)
//	})
//
// After any error the transaction must be rolled back; one that matches backend.ErrLeaseLost says that another consumer has
// claimed the message since. The transaction must be one of the queue's database. It chooses its own isolation level and
// connection; unlike InTx, CompleteTx leaves idle_in_transaction_session_timeout alone, and a failure that comes after the
// lease is over may lose its delay to another consumer, which takes the message in the moment after the rollback.
//
// The consumer learns from the queue what became of the transaction, at the cost of one more statement for each batch of
// settlements.
func CompleteTx(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error {
	m, err := claimedMessage(d)
	if err != nil {
		return err
	}
	if err := m.enterTx(d); err != nil {
		return m.errorf(d, "complete", err)
	}
	ids, reads := m.fence()
	rows, err := tx.Query(ctx, m.sub.sql.remove, ids, reads)
	if err != nil {
		return m.errorf(d, "complete", m.sub.queue.explain(err))
	}
	done, err := marks(1)(rows)
	if err != nil {
		return m.errorf(d, "complete", m.sub.queue.explain(err))
	}
	if !done[0] {
		return m.gone(d, "complete")
	}
	return nil
}

// claimedMessage returns the row of a delivery that came from here.
func claimedMessage(d *backend.Delivery) (*Message, error) {
	m, ok := d.Raw.(*Message)
	if !ok || m.sub == nil {
		return nil, fmt.Errorf("pgmq: message %q of queue %q was not received from PGMQ: InTx and CompleteTx need a delivery of a pgmq.Queue", d.ID, d.Queue)
	}
	return m, nil
}

func (m *Message) errorf(d *backend.Delivery, op string, err error) error {
	return m.sub.queue.errorf(op, fmt.Errorf("message %q (msg_id %d): %w", d.ID, m.MsgID, err))
}

func (m *Message) fence() (ids []int64, reads []int32) {
	return []int64{m.MsgID}, []int32{int32(m.ReadCount)}
}

// enterTx notes that a transaction is about to lock the row: from now on no statement that deals with other messages too
// may wait for it. One that is under way is awaited.
func (m *Message) enterTx(d *backend.Delivery) error {
	d.StopExtending()
	m.gate.Lock()
	defer m.gate.Unlock()
	if m.inTx || d.Settled() {
		return backend.ErrSettled
	}
	m.inTx = true
	return nil
}

// leaveTx notes that the transaction is over and the row as it was claimed.
func (m *Message) leaveTx() {
	m.gate.Lock()
	defer m.gate.Unlock()
	m.inTx = false
}

// gone ends a delivery whose row was not there as it was claimed.
func (m *Message) gone(d *backend.Delivery, op string) error {
	m.leaveTx()
	m.sub.release(m)
	d.MarkLost()
	return m.errorf(d, op, errGone)
}

// transaction is one run of a handler of InTx.
type transaction struct {
	conn     *pgxpool.Conn
	tx       pgx.Tx
	delivery *backend.Delivery
	message  *Message
}

func (t *transaction) run(ctx context.Context, handle func(context.Context, pgx.Tx, *backend.Delivery) error) (err error) {
	d, m := t.delivery, t.message
	if err := m.enterTx(d); err != nil {
		return m.errorf(d, "archive", err)
	}
	removed, err := t.remove(ctx)
	if err != nil {
		t.undo(ctx)
		return m.errorf(d, "archive", m.sub.queue.explain(err))
	}
	if !removed {
		t.rollback(ctx)
		return m.gone(d, "archive")
	}

	succeeded := false
	defer func() {
		if !succeeded { // also after a panic
			t.undo(ctx)
		}
	}()
	err = handle(ctx, handlerTx{t.tx}, d)
	if err == nil && t.conn.Conn().PgConn().TxStatus() == 'E' {
		err = m.errorf(d, "commit", errors.New("the handler returned nil after a statement of its transaction had failed: return the statement's error"))
	}
	if err != nil {
		return err
	}
	succeeded = true
	return t.commit(ctx)
}

const savepoint = "redeliver"

// remove takes the message out of the queue. The row is locked outside of the savepoint, so that it stays so when what came
// after is rolled back.
func (t *transaction) remove(ctx context.Context) (bool, error) {
	sql := &t.message.sub.sql
	ids, reads := t.message.fence()
	batch := new(pgx.Batch)
	if deadline, ok := ctx.Deadline(); ok {
		ms := min(max(time.Until(deadline).Milliseconds(), 1), math.MaxInt32)
		batch.Queue(`SELECT CASE current_setting('idle_in_transaction_session_timeout') WHEN '0'
	THEN set_config('idle_in_transaction_session_timeout', $1::text, true) END`, strconv.FormatInt(ms, 10))
	}
	batch.Queue(sql.lock, ids[0], reads[0])
	batch.Queue("SAVEPOINT " + savepoint)
	var done []bool
	batch.Queue(sql.remove, ids, reads).Query(func(rows pgx.Rows) (err error) {
		done, err = marks(1)(rows)
		return err
	})
	if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
		return false, err
	}
	return done[0], nil
}

// undo takes back what the handler did and leaves the message under a fresh lease, for the settlement of the failure. There
// is no moment in which another consumer could take it. Where the connection is broken, that settlement finds out what
// became of the transaction.
func (t *transaction) undo(ctx context.Context) {
	m := t.message
	until := time.Now().Add(m.sub.lease)
	switch {
	case t.restore(ctx) == nil:
		m.prolonged(until)
		m.leaveTx()
	case t.conn.Conn().IsClosed():
		t.abandon()
	case t.rollback(ctx) == nil:
		m.leaveTx()
	}
}

// abandon waits until the server is through with a connection that was closed, and no longer than abandonTime. pgx cancels the
// statement that runs there, but the server forgets that if the statement has not yet begun.
func (t *transaction) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), abandonTime)
	defer cancel()
	conn := t.conn.Conn().PgConn()
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		select {
		case <-conn.CleanupDone():
			return
		case <-ctx.Done():
			return
		case <-time.After(pause):
			_ = conn.CancelRequest(ctx)
		}
	}
}

func (t *transaction) restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if _, err := t.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT "+savepoint); err != nil {
		return err
	}
	ids, reads := t.message.fence()
	if _, err := t.tx.Exec(ctx, t.message.sub.sql.extend, ids, reads, micros(t.message.sub.lease)); err != nil {
		return err
	}
	return t.tx.Commit(ctx)
}

func (t *transaction) rollback(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	return t.tx.Rollback(ctx)
}

// commit ends the transaction of a handler that succeeded.
func (t *transaction) commit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	d, m := t.delivery, t.message
	err := t.tx.Commit(ctx)
	switch {
	case err == nil:
		m.settled(d)
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		m.leaveTx()
		return m.errorf(d, "commit", err)
	case !unknown(err):
		if !t.conn.Conn().IsClosed() {
			m.leaveTx() // the server refused, a deferred constraint for example
		}
		return m.errorf(d, "commit", m.sub.queue.explain(err))
	}
	fates, lookErr := m.sub.fates(ctx, []item{{delivery: d, message: m}})
	switch {
	case lookErr != nil:
	case fates[0] == committed:
		m.settled(d)
		return nil
	case fates[0] == rolledBack:
		m.leaveTx()
		return m.errorf(d, "commit", fmt.Errorf("the connection ended, and the server rolled back: %w", err))
	}
	return m.errorf(d, "commit", fmt.Errorf("%w: the connection ended before the server answered: %w", backend.ErrUnknown, err))
}

// settled ends a delivery whose transaction was committed.
func (m *Message) settled(d *backend.Delivery) {
	d.MarkSettled()
	m.sub.release(m)
}

func (m *Message) prolonged(until time.Time) {
	m.sub.mu.Lock()
	defer m.sub.mu.Unlock()
	m.until = until
}

// handlerTx is a transaction that is not its user's to end.
type handlerTx struct{ pgx.Tx }

var errNotYours = errors.New("pgmq: InTx ends this transaction: return nil from the handler to commit it, an error to roll it back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }

// fate is what became of a transaction in which a message was removed from the queue.
type fate int

const (
	rolledBack fate = iota // and the message is held under a fresh lease
	committed              // the message is gone
	superseded             // another consumer has claimed it since
	undecided              // it still holds the row
)

// fates finds out what became of the transactions that removed messages. It waits for none of them.
func (s *subscription) fates(ctx context.Context, items []item) ([]fate, error) {
	until := time.Now().Add(s.lease)
	fates, err := query(ctx, s.queue, func(rows pgx.Rows) ([]fate, error) {
		fates := make([]fate, len(items))
		for rows.Next() {
			var n int
			var held, present, ours bool
			if err := rows.Scan(&n, &held, &present, &ours); err != nil {
				return nil, err
			}
			switch {
			case held:
				fates[n-1] = rolledBack
			case !present:
				fates[n-1] = committed
			case !ours:
				fates[n-1] = superseded
			default:
				fates[n-1] = undecided
			}
		}
		return fates, nil
	}, s.sql.hold, append(fenceOf(items), micros(s.lease))...)
	if err != nil {
		return nil, err
	}
	for i, f := range fates {
		if f == rolledBack {
			items[i].message.prolonged(until)
		}
	}
	return fates, nil
}

// disentangle ends the settlements of messages that their handlers' transactions have removed, and leaves those in the draft
// whose transactions were rolled back. The others must not come into a statement with their neighbours, which would wait for
// the transaction.
func (s *subscription) disentangle(ctx context.Context, draft *draft, errs []error) {
	var entangled []item
	for _, items := range draft.items {
		for _, it := range items {
			if it.message.inTx {
				entangled = append(entangled, it)
			}
		}
	}
	if entangled == nil {
		return
	}
	fates, err := s.fates(ctx, entangled)
	for w, items := range draft.items {
		draft.items[w] = slices.DeleteFunc(items, func(it item) bool {
			if !it.message.inTx {
				return false
			}
			if err != nil {
				s.finish(it, s.failed(err), errs)
				return true
			}
			f := fates[0]
			fates = fates[1:]
			return s.settledBy(f, it, errs)
		})
	}
}

// settledBy ends the settlement of a message whose handler's transaction had that fate, or reports that it goes on.
func (s *subscription) settledBy(f fate, it item, errs []error) bool {
	switch f {
	case rolledBack:
		it.message.inTx = false
		return false
	case undecided:
		s.finish(it, fmt.Errorf("%w: the handler's transaction has not ended", backend.ErrUnknown), errs)
	case superseded:
		s.finish(it, errGone, errs)
	case committed:
		s.finish(it, nil, errs)
		if it.outcome != backend.Ack && it.outcome != backend.Discard {
			errs[it.index] = it.message.errorf(it.delivery, it.outcome.String(), fmt.Errorf("%w: the handler's transaction was committed", backend.ErrSettled))
		}
	}
	return true
}
