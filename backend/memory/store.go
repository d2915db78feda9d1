package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// store is a queue's messages. Its methods want the lock held.
type store struct {
	// mu is shared with the dead-letter queue, so that a move between the two is one step.
	mu   *sync.Mutex
	name string
	dead *store // nil if there is none

	refused error // why nothing is accepted, or nil

	// An entry is in one of the heaps, except those that stand behind an earlier one of their group.
	ready   schedule // due, by the time since when
	waiting schedule // not yet due, by the time when they will be
	leased  schedule // held, by the end of their lease
	groups  map[string]*group
	size    int

	added    uint64 // last entry.seq
	receipts uint64 // last entry.receipt

	wake  chan struct{} // closed to wake those that wait in Receive; nil if nobody does
	armed time.Time     // when those that wait wake by themselves; zero means never
}

// entry is one stored message.
type entry struct {
	store    *store
	seq      uint64 // orders entries that are due at the same time
	message  backend.Message
	failure  []byte    // the envelope, as other brokers keep it in a header; nil if there is none
	sent     time.Time // when the producer sent it
	enqueued time.Time // when it came into this queue

	failures, lapses, snoozes, deadLetterWaits int

	due time.Time // from when on it may be received

	// receipt identifies the claim that holds the entry; 0 while nobody does.
	receipt  uint64
	holder   *Subscription
	delivery *backend.Delivery

	// when is the place in the heap, index the position.
	when  time.Time
	index int

	next *entry // the next of its group
}

// group is the messages of one ordered group, in the order in which they came. Only the head is in a heap.
type group struct{ head, tail *entry }

func newStore(name string, mu *sync.Mutex) *store {
	return &store{mu: mu, name: name, groups: make(map[string]*group)}
}

func (s *store) missing() bool { return s != nil && errors.Is(s.refused, backend.ErrQueueNotFound) }

// add puts a new entry in.
func (s *store) add(e *entry, now time.Time) {
	s.added++
	s.size++
	e.store, e.seq, e.due = s, s.added, now
	if name := e.message.Group; name != "" {
		if g := s.groups[name]; g != nil {
			g.tail.next = e
			g.tail = e
			return
		}
		s.groups[name] = &group{head: e, tail: e}
	}
	s.ready.push(e, now)
}

// advance does what time has brought about by now.
func (s *store) advance(now time.Time) {
	for len(s.leased) > 0 && !s.leased[0].when.After(now) {
		e := s.leased[0]
		e.lapses++
		e.delivery.MarkLost()
		s.giveBack(e, e.when, now)
	}
	for len(s.waiting) > 0 && !s.waiting[0].when.After(now) {
		e := s.waiting[0]
		s.waiting.remove(e)
		s.ready.push(e, e.due)
	}
}

// claim leases the first of the ready entries.
func (s *store) claim(sub *Subscription, now time.Time) *backend.Delivery {
	e := s.ready[0]
	s.ready.remove(e)
	s.receipts++
	e.receipt, e.holder = s.receipts, sub
	raw := &Raw{Headers: maps.Clone(e.message.Headers), entry: e, receipt: e.receipt}
	d := &backend.Delivery{
		Message:         clone(e.message),
		Queue:           s.name,
		Attempt:         1 + e.failures,
		Lapses:          e.lapses,
		Snoozes:         e.snoozes,
		Age:             now.Sub(e.enqueued),
		ReceivedAt:      now,
		FirstEnqueuedAt: e.sent,
		DeadLetterWaits: e.deadLetterWaits,
		Raw:             raw,
	}
	if e.failure != nil {
		if raw.Headers == nil {
			raw.Headers = make(map[string]string)
		}
		raw.Headers[backend.HeaderFailure] = string(e.failure)
		d.Failure, _ = backend.ParseFailure(e.failure) // it was written by encode
	}
	e.delivery = d
	s.leased.push(e, now.Add(sub.lease))
	return d
}

// giveBack ends the lease of an entry, which may be received again from due on.
func (s *store) giveBack(e *entry, due, now time.Time) {
	s.leased.remove(e)
	e.receipt, e.holder, e.delivery = 0, nil, nil
	e.due = due
	if due.After(now) {
		s.waiting.push(e, due)
	} else {
		s.ready.push(e, due)
	}
}

// giveBackAll gives back what a subscription holds.
func (s *store) giveBackAll(sub *Subscription, now time.Time) {
	var held []*entry
	for _, e := range s.leased {
		if e.holder == sub {
			held = append(held, e)
		}
	}
	for _, e := range held {
		e.delivery.MarkLost()
		s.giveBack(e, e.due, now)
	}
}

// remove takes a leased entry out, and lets the next of its group come.
func (s *store) remove(e *entry) {
	s.leased.remove(e)
	s.size--
	e.receipt, e.holder, e.delivery = 0, nil, nil
	if name := e.message.Group; name != "" {
		g := s.groups[name]
		g.head = e.next
		e.next = nil
		if g.head == nil {
			delete(s.groups, name)
		} else {
			s.ready.push(g.head, g.head.due)
		}
	}
}

// deadLetter moves a leased entry to the dead-letter queue.
func (s *store) deadLetter(e *entry, f backend.Failure, now time.Time) error {
	if s.dead == nil {
		return fmt.Errorf("message %q: dead-letter: the queue was made without a dead-letter queue: %w", e.message.ID, backend.ErrQueueNotFound)
	}
	if err := s.dead.refused; err != nil {
		return fmt.Errorf("message %q: dead-letter to %q: %w", e.message.ID, s.dead.name, err)
	}
	s.remove(e)
	s.dead.add(&entry{message: e.message, failure: encode(f), sent: e.sent, enqueued: now}, now)
	s.dead.rouse()
	return nil
}

// next returns when time will bring something about, or zero if it will not.
func (s *store) next() time.Time {
	var next time.Time
	for _, h := range []schedule{s.waiting, s.leased} {
		if len(h) > 0 && (next.IsZero() || h[0].when.Before(next)) {
			next = h[0].when
		}
	}
	return next
}

// rouse wakes those that wait in Receive if there is something for them, or will be before they wake by themselves.
func (s *store) rouse() {
	next := s.next()
	if len(s.ready) > 0 || !next.IsZero() && (s.armed.IsZero() || next.Before(s.armed)) {
		s.wakeAll()
	}
}

func (s *store) wakeAll() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// waiter tells what a Receive that found nothing has to wait for.
func (s *store) waiter(now time.Time) waiter {
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	s.armed = s.next()
	w := waiter{wake: s.wake}
	if !s.armed.IsZero() {
		w.timer = time.NewTimer(s.armed.Sub(now))
	}
	return w
}

type waiter struct {
	wake  <-chan struct{}
	timer *time.Timer // nil if time alone brings nothing
}

func (w waiter) wait(ctx context.Context) {
	var due <-chan time.Time
	if w.timer != nil {
		defer w.timer.Stop()
		due = w.timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-due:
	}
}

func encode(f backend.Failure) []byte { return f.Encode(backend.DefaultEnvelopeBudget) }

// clone separates a stored message from what its producer and its handlers do to theirs.
func clone(m backend.Message) backend.Message {
	m.Body = bytes.Clone(m.Body)
	m.Headers = maps.Clone(m.Headers)
	return m
}
