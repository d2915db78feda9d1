// Package analysis answers what cannot be seen by looking at a retry policy:
// when its attempts fall, when it gives up, what share of the messages
// outlives an outage of a given length, what to change so that they do, and
// what that costs.
//
//	s, err := analysis.New(payments, analysis.Conditions{})
//	s.Attempts                            // when each attempt falls: earliest, mean, latest
//	s.Horizon()                           // when it gives up
//	s.Survival(90 * time.Second).AtStart  // the share that an outage of 90 s does not kill
//
// # What is assumed
//
// The messages fail each time until the outage is over, and then succeed.
// Attempts that begin within the outage fail; one that begins at its very end
// succeeds. The broker holds each retry for exactly its delay, as far as
// [Conditions.Broker] does not say otherwise, and a consumer is free when it is
// due: package simulate shows what queueing adds. The delays of different
// attempts are independent, which the hash of package policy makes them.
//
// # How it is computed
//
// There is no second formula for delays here. [New] asks [policy.Policy.Decide]
// for both ends of each range, with a random source that draws the lowest and
// the highest number, so rules and curves of your own are covered. In between,
// every nanosecond is as likely as the next; that is the contract of
// [policy.Jitter].
//
// The time of an attempt is then a sum of independent uniform variables.
// A message that always fails makes its last attempt at a time H, the horizon
// that chance gives it, and the outage of length L kills a message if and only
// if H < L: the whole question is the distribution of H. It is followed attempt
// by attempt on a grid of whole nanoseconds. Each delay is rounded down to the
// grid, so no attempt is ever later than in truth, nor earlier by more than
// what the roundings add up to; shifting the limits by that sum gives a value
// that is certainly too low, and one that is certainly too high. A [Share] is
// the middle of the two, with half their distance as its error. This is a
// proof, not an estimate: nothing is sampled. Without jitter the grid is exact
// and the error 0.
//
// The maximum age is compared with the delay that the policy decides on, before
// the broker rounds or cuts it. Where that makes a difference the bounds allow for
// all of it.
package analysis
