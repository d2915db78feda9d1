package conformance

import "fmt"

// Violation is a sentence of the contract that a backend does not keep, seen in one case.
type Violation struct {
	// Sentence is what was not kept. Number 0 stands for a case that could not be made to run: its harness failed.
	Sentence Sentence
	// Case names the case, as -run does: "settle/ack is final".
	Case string
	// Detail says what was expected and what was seen.
	Detail string
}

// String returns the sentence, the case and the detail.
func (v Violation) String() string {
	return fmt.Sprintf("%s\n\tin %q: %s", v.Sentence, v.Case, v.Detail)
}
