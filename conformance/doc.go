// Package conformance checks whether a backend keeps the contract between a consumer and a broker.
//
// The contract is a list of sentences: see Sentences. Each case of the suite checks one or a few of them against a real
// queue, and a failure prints the sentence that was not kept.
package conformance
