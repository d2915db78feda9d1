package conformance

import "fmt"

// Sentence is a sentence of the contract between a consumer and a broker.
type Sentence struct {
	Number int    // from 1; 0 for what is wrong with the harness or the machine
	Text   string // without a number
}

// String returns "sentence 7: A retry is never early: ...".
func (s Sentence) String() string {
	if s.Number == setup {
		return s.Text
	}
	return fmt.Sprintf("sentence %d: %s", s.Number, s.Text)
}

// Sentences returns the contract, in order. Not every sentence is checked yet: redrive (21) is not.
func Sentences() []Sentence {
	all := make([]Sentence, 0, len(contract)-1)
	for n := range contract {
		if n != setup {
			all = append(all, sentence(n))
		}
	}
	return all
}

func sentence(n int) Sentence { return Sentence{Number: n, Text: contract[n]} }

// setup stands for what is wrong before the contract has a say: the harness, or the machine.
const setup = 0

var contract = [...]string{
	setup: "The harness failed: it has to open a fresh queue, publish to it and tear it down, on a machine that keeps up with its leases.",

	1: "A received message is byte for byte what was sent: body, headers, ID. Where the broker stores JSON, the body is equal as JSON, with exact numbers.",
	2: "The first delivery is attempt 1, and each reported failure adds exactly 1, across processes, restarts and reconnects; releases, snoozes and lapses add nothing to it.",
	3: "No two consumers hold the same message at once while its lease is held.",
	4: "A cancelled or timed-out Receive loses nothing and hides nothing: what it had taken is available again at once.",
	5: "Receive returns when there is something, without the caller polling; a message that comes due wakes it.",

	6: "Ack is final: the message never comes back.",
	7: "A retry is never early: not before its delay has passed since Settle was called.",
	8: "A retry is not late: within the granularity that the backend states, plus scheduling slack, also while many others wait. " +
		"A short wait is not held up behind a long one.",
	9: "A retried message is whole: same ID, body and headers, whatever its handler did to them, and an age that counts from when it was sent; " +
		"nothing piles up with attempts.",
	10: "A retry reaches only the queue that failed.",
	11: "Dead-lettering leaves exactly one copy, with its envelope, in the dead-letter queue, and nothing in the queue.",
	12: "Nothing is removed before the broker confirmed where it is now. If the dead-letter queue is unavailable, the message stays and does not block others: " +
		"it waits with its failure record, and is dead-lettered without running again.",
	13: "Discard removes. Release returns at once, uncharged unless the backend states otherwise.",
	14: "A lease that lapses without an outcome brings the message back with one lapse more; above MaxLapses it is dead-lettered before it runs again.",
	15: "Extend keeps a delivery from others; once the lease is lost, Extend says so.",
	16: "A settlement from a lost lease fails with ErrLeaseLost and changes nothing for the new holder.",
	17: "A second settlement of the same delivery fails with ErrSettled and changes nothing; an Extend after the settlement fails and changes nothing either.",
	18: "In a batch each item has its own result; one that fails does not take others with it.",

	19: "Close gives back what was received and not settled, within the lease.",
	20: "A queue that does not exist, a missing dead-letter queue, a queue whose settings defeat the policy: an error at start that says what to do.",
	21: "Redrive returns a message to the queue that it failed in, as attempt 1 with no lapses, its origin kept and its redrives counted; " +
		"messages dead-lettered after it began are not picked up again.",
	22: "The envelope of the same failure is the same document on every broker, apart from times, host and declared gaps; its first times are written once.",
	23: "Where a backend keeps groups in order, a group's messages are handled one at a time, in order; a head that waits for its retry holds its group; others go on.",
}
