// Package classify tells what kind of error a handler met, so that the rules of a policy, also those in a file, can treat
// one kind differently from another. It imports the standard library alone: the errors of other libraries are known by
// their methods.
//
//	payments.Rules = []policy.Rule{
//		{Name: "throttled", Match: classify.Throttled, MaxAttempts: 20, Backoff: policy.Fixed(time.Minute)},
//		{Name: "invalid", Match: classify.Permanent, Action: policy.ActionDeadLetter},
//	}
//
// # Classes
//
// A [Class] is a name. An error can have several: a group, which says what a retry is good for, a family, which says where
// the error is from, and a detail of the family. A response with status 429 has http-429, http-4xx, http, throttled and
// transient.
//
//	transient         another try may succeed; throttled and timeout are part of it
//	throttled         we asked too often
//	timeout           the answer took too long
//	permanent         another try will fail as well
//	canceled          somebody called it off
//
// An error of which nothing is known has no class, and one that is known but says nothing of a retry, such as gRPC's UNKNOWN,
// has no group: the policy itself then decides, which retries.
//
// # What is recognised
//
// HTTP: an error with a method StatusCode() int or HTTPStatusCode() int, as those of [Response] and of many clients have.
// Its classes are http-<status>, http-<digit>xx and http. Sources: RFC 9110, section 15; RFC 6585, section 4 (429); RFC 8470,
// section 5.2 (425).
//
//	408, 504          timeout
//	425               transient
//	429               throttled
//	other 5xx         transient
//	other 4xx         permanent
//
// So 501 and 505 are transient, too: a server that does not have what was asked for may be in the middle of its deploy. A rule of
// http-501 can see that otherwise.
//
// Network: the errors of the packages net, net/http, net/url and os, and the numbers of the system's that they hold. Source:
// the documentation of these packages, and connect(2), send(2) and recv(2).
//
//	net-refused       nobody listens there: ECONNREFUSED             transient
//	net-reset         ECONNRESET, ECONNABORTED, EPIPE, ENETRESET     transient
//	net-unreachable   EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, ENETDOWN transient
//	net-timeout       ETIMEDOUT, os.ErrDeadlineExceeded              timeout
//	net-resources     EMFILE, ENFILE, ENOBUFS, ENOMEM, EADDRNOTAVAIL transient
//	net-closed        net.ErrClosed; the end of a stream in a call of an HTTP client or a connection   transient
//	net-address       an address or URL that makes no sense          permanent
//	net               any other error of a connection or an HTTP client   transient
//	dns-not-found     no such host                                   transient
//	dns-timeout       no answer from the server                      timeout
//	dns               any other failure of a look-up                 transient
//	tls               a certificate or handshake that is refused     permanent
//	timeout           any error whose method Timeout() bool says so
//	transient         any error whose method Temporary() bool says so
//
// A host that is not found is not permanent here, though most clients see it so: while a service is redeployed its name comes
// and goes, and a message that was dead-lettered for that would have succeeded a minute later. Let a rule of its own say so
// where names are stable.
//
// Contexts: context-deadline (timeout) is context.DeadlineExceeded, as when a handler outlived its bound, and context-canceled
// (canceled) is context.Canceled.
//
// SQL: an error with a method SQLState() string, as those of pgx and lib/pq have. Its classes are sqlstate-<five characters>,
// sqlstate-<the first two> and sqlstate. Source: PostgreSQL's documentation, appendix A, "PostgreSQL Error Codes".
//
//	08                the connection                                 transient; 08P01, a protocol violation, permanent
//	40                a rollback: serialization failure, deadlock    transient; 40002, a constraint, permanent
//	53                insufficient resources                         transient
//	55006, 55P03      the object is in use; a lock is not available  transient
//	57                an operator intervened, shutdown, restart      transient; 57P04, the database is dropped, permanent
//	57014, 57P05      the query was cancelled, often by its timeout; the session idled too long   timeout
//	25006             read-only, as on a standby after a failover    transient
//	25P02, 25P03      the transaction was failed or idled too long   transient
//	58                the server's system                            transient
//	0A 21 22 23 26 28 2B 34 3D 3F 42 44 54   the statement, its data, its rights, a limit   permanent
//
// Others, XX (internal errors) and P0 (raised by a function) among them, have no group.
//
// AWS: an error with a method ErrorCode() string, as those of its SDK have. Its classes are aws-<code> and aws. The SDK's own
// tables decide: DefaultThrottleErrorCodes (throttled) and DefaultRetryableErrorCodes (timeout) of its package aws/retry. Of
// other codes the HTTP status decides, which such an error carries too.
//
// gRPC: an error with a method GRPCStatus() that returns something with a method Code() uint32 or a type of that kind. Its
// classes are grpc-<code> and grpc. Source: gRPC's documentation, "Status Codes".
//
//	grpc-unavailable, grpc-aborted    transient
//	grpc-resource-exhausted           throttled
//	grpc-deadline-exceeded            timeout
//	grpc-canceled                     canceled
//	grpc-unknown, grpc-internal       no group
//	others                            permanent
//
// # Several errors in one
//
// Errors that wrap or join others have the classes of all of them. The group is that of the innermost that has one, since it
// is closest to the cause; of several that are joined it is that of the first.
package classify
