package simulate

import "time"

// A Tokens is a Budget in the manner of the retry quota of the AWS SDKs: a
// bucket from which each retry takes a token, and which successes fill again.
// While it is empty, waits are stretched. The zero value of a field is its
// default; Share and Burst are then as there, where a retry takes 5 of 500
// tokens and a success gives 1 back.
type Tokens struct {
	// Share is what a success puts in: how many retries there may be for each
	// success in the long run. 0.2 by default.
	Share float64

	// Burst is how many tokens there are at first and at most. 100 by default.
	Burst float64

	// Stretch is what a wait is multiplied by while there are none. 4 by
	// default.
	Stretch float64
}

// New makes the budget of a run. It is what Scenario.Budget takes.
func (t Tokens) New() Budget {
	orDefault(&t.Share, 0.2)
	orDefault(&t.Burst, 100)
	orDefault(&t.Stretch, 4)
	return &tokens{Tokens: t, left: t.Burst}
}

type tokens struct {
	Tokens
	left float64
}

func (t *tokens) Called(_ time.Duration, succeeded bool) {
	if succeeded {
		t.left = min(t.left+t.Share, t.Burst)
	}
}

func (t *tokens) Wait(_, wait time.Duration) time.Duration {
	if t.left >= 1 {
		t.left--
		return wait
	}
	return time.Duration(min(float64(wait)*t.Stretch, float64(1<<62)))
}
