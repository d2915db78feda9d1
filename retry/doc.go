// Package retry calls a function until it succeeds or a [policy.Policy] gives it up: the policy of a queue, for a call within
// the process.
//
//	err := retry.Do(ctx, payments, func(ctx context.Context) error {
//		return gateway.Charge(ctx, card, amount)
//	})
//
// The waits are spent here, in the process, and a crash ends them. What must survive one belongs in a queue; this package is for
// what a caller waits for, for a connection at start, or for the second or two that a handler spends before it lets its
// message wait in the broker.
//
// # What the policy means for a call
//
// The policy decides about each failure as it does for a message. MaxAttempts counts failures, and the delays are those of
// Backoff, Jitter, MinDelay and MaxDelay; rules are followed. MaxAge is counted from the beginning of Do: a retry that would
// begin after it is given up at once, not waited for. MaxLapses has no meaning for a call.
//
// A message has an ID that its jitter is drawn from. Each Do has one of its own, random, so that processes which failed
// together do not retry together; [ID] gives another.
//
// # What the function says
//
// Any error is retried, unless it carries a mark of package policy or a rule says otherwise:
//
//	policy.Permanent(err)      gives up at once
//	policy.Discard(err)        gives up at once too, with the reason policy.ReasonDiscarded: there is no message to remove
//	policy.RetryAfter(d, err)  is retried no sooner than d from now
//	policy.Snooze(d)           is called again after d, with the same attempt number, at most MaxSnoozes times
//
// A panic passes through, and so does runtime.Goexit.
//
// # How it ends
//
// With nil, or with an [Error], which says why it ended and holds the last error of the function: errors.Is and errors.As find
// it, and so does a policy further out. A handler that returns what Do returned passes on to the policy of its queue that an
// error is permanent, or how long a server asked to wait.
//
// The end of the context ends Do: it does not begin another call, and a wait ends at once. Where the context has a deadline
// before the next call, Do does not wait for it to come. An attempt that needs a limit of its own takes it in the function,
// with context.WithTimeout; such a deadline is a failure, and retried.
package retry
