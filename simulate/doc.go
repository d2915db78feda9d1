// Package simulate shows what a retry policy does to a dependency that goes
// down and comes back: the load over time, the peak on recovery, how many
// messages are dead-lettered meanwhile, and how long it takes until all is
// worked off.
//
//	r, err := simulate.Run(payments, simulate.Scenario{
//		Messages:  10_000,
//		Over:      5 * time.Minute,
//		Consumers: 50,
//		Capacity:  60,
//		Outage:    simulate.Outage{From: time.Minute, For: 90 * time.Second},
//	})
//
// # The model
//
// Messages arrive one by one, spread over a time, and wait in one queue. A
// number of consumers take them in the order in which they become due, and call
// the dependency once for each. In the outage every call fails. Otherwise the
// dependency serves its capacity of calls a second, with bursts of a tenth of
// that, and refuses more; a refused call has failed as well. The policy decides
// about each failure, and the broker holds the message as long as its limits
// say.
//
// Time is virtual. Everything follows from the scenario and its seed: the same
// two give the same result, on every machine. Unlike package analysis, which
// computes the fate of one message exactly, this shows how many of them get in
// each other's way.
package simulate
