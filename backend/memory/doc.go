// Package memory is the backend that needs no broker: queues that live in this process.
//
// It serves development and tests, and single processes that can afford to lose their queue when they end. It keeps the
// whole contract of package backend, so it is also the model that the other backends are compared with: leases run out by
// time, retries wait for their delay, groups stay in order, dead letters carry the same envelope in the same header. One
// option departs from it: with Options.NoDeadLetter there is nowhere for a dead letter to go, and a consumer starts all the
// same.
//
//	orders := memory.New("orders", memory.Options{})
//	err := orders.Publish(ctx, backend.Message{Body: []byte("one")})
//	...
//	dead, err := orders.DeadLetters().Subscribe(ctx, backend.SubscribeOptions{Lease: time.Minute})
//
// # Time
//
// A queue starts no goroutine and keeps no timer but that of a waiting Receive. Everything that time brings about, a
// delay that ends or a lease that runs out, happens when somebody looks next. In a bubble of testing/synctest a day of
// backoff therefore takes a few milliseconds.
//
// # Playing the faults of a broker
//
// A *Queue is a handle, as a process holds it; Open gives another one on the same messages, as another process would hold
// it. Crash abandons a handle as a killed process would: the leases run on until they lapse. Refuse makes a queue accept
// nothing, as a full or missing one would, which is of most use with a dead-letter queue.
package memory
