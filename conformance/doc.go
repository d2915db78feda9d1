// Package conformance checks whether a backend keeps the contract between a consumer and a broker.
//
// The contract is a list of sentences: see Sentences. Each case of the suite checks one or a few of them against a real
// queue, and a failure prints the sentence that was not kept, the case, and what was seen. The same suite runs against the
// backends of this module, so one that passes can take the place of any of them under package consumer.
//
// # Running it
//
// A harness tells how to open a queue that nobody else uses. That is all that it must tell:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Harness{
//			Name: "mybroker",
//			Open: func(ctx context.Context, name string) (*conformance.Fixture, error) {
//				if err := mybroker.Create(ctx, name, name+"_dlq"); err != nil {
//					return nil, err
//				}
//				queue, dead := mybroker.Open(name), mybroker.Open(name+"_dlq")
//				return &conformance.Fixture{
//					Queue:       queue, // a backend.Publisher too, or set Publish
//					DeadLetters: dead,
//					Close:       func(ctx context.Context) error { return mybroker.Drop(ctx, name, name+"_dlq") },
//				}, nil
//			},
//		})
//	}
//
// The other hooks of Harness and Fixture are optional, and each lets more be checked: a second client, the death of a
// client, a dead-letter queue that is missing or full. Without its hook a case is skipped. Set them all before you call a
// backend finished.
//
// What a broker cannot do it says in its backend.Limits, and the suite then checks what is said: a retry has the stated
// granularity more to come, a release that is charged may show in the counts, a broker that stores JSON must give back
// equal JSON. Cases about what the limits exclude do not apply. The summary at the end names whatever was not checked, and
// why; go test -v shows it.
//
// # How it works
//
// Each case opens a queue of its own and tears it down, so cases run in parallel and any of them alone. Each has a
// deadline. The cases never sleep: they wait in Receive, with a deadline, for what must come, and for as long as it takes
// to see that something does not. They use no clock but that of package time and no network, so the whole suite
// runs in a bubble of testing/synctest against a backend that lives in the process; use Check there.
//
// A machine that stalls for as long as a lease makes any backend look broken. The suite notices that and begins the case
// anew. If it stalls again and again, raise Harness.Lease, and Harness.Slack for messages that come late.
package conformance
