// Package policyfile reads retry policies from a file, in YAML or JSON, so that those who run a program can see and change
// them without building it.
//
//	default: standard
//	policies:
//	  standard:
//	    max_attempts: 8
//	    backoff: {curve: exponential, base: 500ms, max: 30s}
//	    jitter: full
//	  patient:
//	    extends: standard
//	    max_attempts: 20
//	    max_age: 24h
//	    rules:
//	      - class: throttled
//	        max_attempts: unlimited
//	        backoff: {curve: fixed, delay: 1m}
//	      - class: [permanent, http-409]
//	        action: dead-letter
//	queues:
//	  invoices: {policy: patient}
//	  orders: {types: {refund: patient}}
//	types:
//	  newsletter: patient
//	wishes: [patient]
//
// A file names policies, one of which is the default. A queue may have another one, a type of message too, and a type
// within a queue: [File.For] tells which governs a message. Those under wishes a message may ask for itself, in its header
// redeliver-policy, within the bounds of the one that governs it. Every field stands for the field of [policy.Policy] that has
// its name, and a policy that extends another takes from it the fields that it does not set itself. The errors that a rule is
// for are told by their class: see package classify, and [Options].Classes for classes of your own.
//
// # Strictness
//
// A file is read whole or not at all, and every fault in it is reported at once, with line, column and what would be right.
// Unknown keys, keys that occur twice, values of the wrong type and policies that [policy.Policy.Validate] refuses are faults.
// A duration is text with a unit, such as "500ms" or "1h30m"; a bare number is a fault, since it could be of any unit, save
// for 0 where 0 is legal. Days are written in hours. YAML's anchors and aliases work. Its merge key (<<) does not, for extends
// does the same in JSON too.
//
// [Schema] is the JSON Schema of both formats. Editors show with it what may be written; it is more lenient than [Parse],
// as it cannot compare one field with another.
//
// # Environment
//
// [Options].Environ overrides single values: the variable's name is REDELIVER_POLICY, the name of the policy, and the path of
// the value below it, in upper case, joined by underscores, with an underscore for each character that is no letter or digit:
//
//	REDELIVER_POLICY_STANDARD_MAX_ATTEMPTS=3
//	REDELIVER_POLICY_STANDARD_BACKOFF_BASE=2s
//
// They change the policy that they name, and not those that extend it. What is true of the file is true of them: a variable
// that begins with REDELIVER_POLICY_ and names no policy or no field is a fault.
package policyfile
