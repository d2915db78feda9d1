package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/conformance"
)

// bare is a harness with nothing but what it must hold.
func bare(open func(name string) (backend.Queue, backend.Queue, error)) conformance.Harness {
	return conformance.Harness{
		Name: "bare",
		Open: func(_ context.Context, name string) (*conformance.Fixture, error) {
			q, dead, err := open(name)
			if err != nil {
				return nil, err
			}
			return &conformance.Fixture{Queue: q, DeadLetters: dead}, nil
		},
	}
}

func openMemory(name string) (backend.Queue, backend.Queue, error) {
	q := memory.New(name, memory.Options{})
	return q, q.DeadLetters(), nil
}

// In real time, where a test checks a real broker. The machine may be busy: how exact the times are shows in virtual time.
func TestRun(t *testing.T) {
	h := harnessOf(saboteur{})
	h.Name, h.Lease, h.Slack = "memory", 500*time.Millisecond, 5*time.Second
	conformance.Run(t, h)
}

func TestBareHarnessIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		h := bare(openMemory)
		h.Logf = func(format string, args ...any) { fmt.Fprintf(&log, format, args...) }
		require.Empty(t, conformance.Check(t.Context(), h))
		// What was not checked is told, with what would be needed.
		for _, hook := range []string{"Harness.OpenWithoutQueue", "Harness.OpenWithoutDeadLetters", "Fixture.Reopen", "Fixture.BreakDeadLetters"} {
			require.Contains(t, log.String(), "skipped: the harness has no "+hook)
		}
		require.Contains(t, log.String(), "conformance of bare: ")
		require.Contains(t, log.String(), "does not apply: Limits.MaxDelay is 0")
	})
}

// limited is a queue that declares limits and keeps its contract otherwise.
type limited struct {
	*memory.Queue
	limits backend.Limits
}

func (q limited) Limits() backend.Limits { return q.limits }

func (q limited) Publish(ctx context.Context, msgs ...backend.Message) error {
	for _, m := range msgs {
		if m.Group != "" && !q.limits.Ordered {
			return fmt.Errorf("%w: no groups here", backend.ErrInvalidMessage)
		}
	}
	return q.Queue.Publish(ctx, msgs...)
}

// What the limits exclude is not demanded, and is named.
func TestDeclaredLimits(t *testing.T) {
	for told, limits := range map[string]backend.Limits{
		"Limits.Ordered is false":       {LeaseExpires: true},
		"Limits.NoRetryRecord":          {LeaseExpires: true, Ordered: true, NoRetryRecord: true},
		"leases do not expire by time":  {Ordered: true},
		"Limits.CountsReceives: ":       {LeaseExpires: true, Ordered: true, CountsReceives: true},
		"Limits.LeaseExpires is false:": {Ordered: true},
	} {
		t.Run(told, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				h := bare(func(name string) (backend.Queue, backend.Queue, error) {
					q := memory.New(name, memory.Options{})
					return limited{q, limits}, q.DeadLetters(), nil
				})
				h.Logf = func(format string, args ...any) { fmt.Fprintf(&log, format, args...) }
				require.Empty(t, conformance.Check(t.Context(), h))
				require.Contains(t, log.String(), told)
			})
		})
	}
}

func TestHarnessThatFails(t *testing.T) {
	for name, h := range map[string]conformance.Harness{
		"no Open":   {},
		"no server": bare(func(string) (backend.Queue, backend.Queue, error) { return nil, nil, errors.New("no server") }),
		"no dead letters": bare(func(name string) (backend.Queue, backend.Queue, error) {
			return memory.New(name, memory.Options{}), nil, nil
		}),
		"no Publish": bare(func(name string) (backend.Queue, backend.Queue, error) {
			return struct{ backend.Queue }{memory.New(name, memory.Options{})}, memory.New(name, memory.Options{}), nil
		}),
		"Open panics": bare(func(string) (backend.Queue, backend.Queue, error) { panic("no server") }),
	} {
		t.Run(name, func(t *testing.T) {
			violations := conformance.Check(t.Context(), h)
			require.NotEmpty(t, violations)
			seen := make(map[string]bool)
			for _, v := range violations {
				require.False(t, seen[v.Case], "%s was reported twice", v.Case)
				seen[v.Case] = true
				if name != "Open panics" {
					require.Zero(t, v.Sentence.Number, "%v", v)
					require.Contains(t, v.String(), "The harness failed")
				}
			}
		})
	}
}

// A run that is cancelled ends, and does not pass.
func TestCancelledCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		require.NotEmpty(t, conformance.Check(ctx, bare(openMemory)))
		require.Less(t, time.Since(begun), time.Minute)
	})
}

func TestNamesOfQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := make(chan string, 1000)
		conformance.Check(t.Context(), bare(func(name string) (backend.Queue, backend.Queue, error) {
			names <- name
			return nil, nil, errors.New("never mind")
		}))
		close(names)
		seen := make(map[string]bool)
		for name := range names {
			require.Regexp(t, `^[a-z0-9_]{1,40}$`, name)
			require.False(t, seen[name], "%s was used twice", name)
			seen[name] = true
		}
		require.NotEmpty(t, seen)
	})
}

func TestSentences(t *testing.T) {
	all := conformance.Sentences()
	require.Len(t, all, 23)
	for i, s := range all {
		require.Equal(t, i+1, s.Number)
		require.NotEmpty(t, s.Text)
	}
	v := conformance.Violation{Sentence: all[6], Case: "retry/a case", Detail: "it came 1ms early"}
	require.Equal(t, "sentence 7: A retry is never early: not before its delay has passed since Settle was called.\n"+
		"\tin \"retry/a case\": it came 1ms early", v.String())
}
