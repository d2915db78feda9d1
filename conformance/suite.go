package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// Run checks a backend in subtests of t, one for each case, named by area and sentence, so that one area or one case can be
// run alone:
//
//	go test -run 'TestConformance/settle'
//	go test -run 'TestConformance/settle/ack_is_final'
//
// The cases wait more than they work, so raising -parallel makes the suite faster. A case that needs a hook that the
// harness lacks is skipped. One that asks for what the backend's limits exclude does not apply, and passes. Both are
// listed with their reasons in a summary at the end.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h = h.withDefaults()
	var s summary
	t.Cleanup(func() { t.Log(s.text(h.Name)) })
	for i, one := range cases {
		t.Run(one.path(), func(t *testing.T) {
			t.Parallel()
			r := h.run(t.Context(), one)
			s.add(i, r)
			for _, v := range r.violations {
				t.Error(v)
			}
			switch {
			case len(r.violations) > 0:
			case r.inapplicable != "":
				t.Log("does not apply:", r.inapplicable)
			case r.skipped != "":
				t.Skip(r.skipped)
			}
		})
	}
}

// checksAtOnce is how many cases Check runs at the same time. They wait more than they work.
const checksAtOnce = 4

// Check runs every case and returns all violations, in the order of the cases. It needs no test, and works inside a bubble
// of testing/synctest if the backend does. It ends when ctx does, with the cases that had not ended by then reported.
func Check(ctx context.Context, h Harness) []Violation {
	h = h.withDefaults()
	results := make([]result, len(cases))
	var wg sync.WaitGroup
	slots := make(chan struct{}, checksAtOnce)
	for i, one := range cases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = h.run(ctx, one)
		})
	}
	wg.Wait()
	var s summary
	var all []Violation
	for i, r := range results {
		s.add(i, r)
		all = append(all, r.violations...)
	}
	if h.Logf != nil {
		h.Logf("%s", s.text(h.Name))
	}
	return all
}

// cases are all cases, in their order.
var cases = join(
	area("receive", receiveCases),
	area("settle", settleCases),
	area("retry", retryCases),
	area("deadletter", deadLetterCases),
	area("lease", leaseCases),
	area("ends", endsCases),
	area("order", orderCases),
	area("consume", consumeCases),
)

// testCase is one thing to check. It is given a fresh fixture.
type testCase struct {
	area, name string
	// sentence is what the case is about: what fails to end is reported under it.
	sentence int
	check    func(*trial)
}

func (c testCase) path() string { return c.area + "/" + c.name }

func area(name string, list []testCase) []testCase {
	for i := range list {
		list[i].area = name
	}
	return list
}

func join(areas ...[]testCase) []testCase {
	var all []testCase
	for _, list := range areas {
		all = append(all, list...)
	}
	return all
}

// summary tells what was not checked, and why.
type summary struct {
	mu   sync.Mutex
	ran  int
	left map[int]string // by the case's position
}

func (s *summary) add(i int, r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == nil {
		s.left = make(map[int]string)
	}
	switch {
	case r.inapplicable != "":
		s.left[i] = "does not apply: " + r.inapplicable
	case r.skipped != "":
		s.left[i] = "skipped: " + r.skipped
	default:
		s.ran++
	}
}

func (s *summary) text(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "conformance of %s: %d cases checked, %d not", name, s.ran, len(s.left))
	for i, one := range cases {
		if why := s.left[i]; why != "" {
			fmt.Fprintf(&b, "\n\t%s: %s", one.path(), why)
		}
	}
	return b.String()
}
