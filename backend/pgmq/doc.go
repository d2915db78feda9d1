// Package pgmq receives from and settles on queues of PGMQ, the message queue that lives in PostgreSQL.
//
//	pool, err := pgxpool.New(ctx, url)
//	queue, err := pgmq.Open(pool, "orders", pgmq.Options{})
//	err = queue.Create(ctx) // once, by whoever sets the database up: orders and orders_dlq
//
// A Queue is what a consumer takes; it also publishes, tells how full it is and checks its settings.
//
// # How it works
//
// Messages are rows of pgmq.q_<name>, archived ones of pgmq.a_<name>, dead letters of pgmq.q_<name>_dlq. The functions of
// the extension create the tables; everything else is SQL on them, for three reasons. pgmq.read walks through every message
// that waits for a retry, so it is slowest when many do. pgmq.archive, pgmq.delete and pgmq.set_vt do not ask whether the
// message is still the caller's. And the functions differ between versions, while the tables do not.
//
// Every claim adds one to a row's read_ct, so message and read_ct together name one delivery, and every statement that
// settles or extends is bound to both. A consumer that lost its lease changes nothing; it gets backend.ErrLeaseLost.
//
// A consumer waits on a timer for the next message that comes due in the queue, and asks again each PollInterval for
// messages that others have sent. It needs no trigger, no LISTEN and no connection of its own. Times are the server's.
// Options.Listen adds LISTEN where others' messages have to be found sooner than PollInterval finds them: see below.
//
// Deliveries of one call to Receive are in the order in which they were sent; which messages it takes goes by the time at
// which they came due.
//
// # What is kept in a message's headers
//
// A message that was never retried keeps its headers as they are, NULL too. Otherwise, beside the producer's own headers,
// which keep their JSON types:
//
//	redeliver-id       the message ID
//	redeliver-counts   how its earlier deliveries ended: failures, snoozes, releases, waits for the dead-letter queue
//	redeliver-failure  the record of its last failure: reason, error, error_type, attempts, first_failed_at
//
// So a SELECT shows why each message waits:
//
//	SELECT msg_id, vt, headers->'redeliver-failure'->>'error' FROM pgmq.q_orders ORDER BY vt
//
// The record of a retry is short, since the database parses and writes it with every retry: the error's first 256 bytes, and
// no stack. A dead letter carries the whole envelope; only that of a message that is abandoned after a failure, without
// running again, has no more than the record (backend.Limits.ShortRetryRecord).
//
// What read_ct counts beyond those are lapses: deliveries that ended without an outcome. A read by another client, with
// pgmq.read for example, is one each time, whatever came of it, since nothing in the row tells; where others take messages
// and let them go, leave room for that in Policy.MaxLapses. Counts that exceed read_ct are cut, and those of a message that
// nobody has read yet are dropped: its producer made them up. Beyond that the headers are trusted, as is whoever may write to
// the tables: a producer harms no message but its own. Headers that are no JSON object, which PGMQ allows, move
// under redeliver-headers when something has to be written beside them.
//
// Bodies are moved inside the database, never through Go: a retried or dead-lettered body is the same jsonb value.
//
// # Effects that happen once
//
// A handler whose effects are in the queue's own database can have them exactly once, which no acknowledgement alone can
// give. InTx runs it in the transaction that takes the message out of the queue first; CompleteTx does the same to a
// transaction that the handler opens by itself; PublishTx sends in a transaction. Effect, removal and what was sent are
// committed together, or rolled back, and then the policy decides as it does about any failure.
//
// # Long life
//
// Each retry leaves a dead row behind, for autovacuum to remove, and each success a row in the archive. Tune sets storage
// parameters for that, PurgeArchive deletes from the archive by age, and Depth tells in about a millisecond how full the queue
// is and how far consumers are behind. Check warns of partitioned queues, whose retention drops messages that were not handled,
// and which have no index on vt. Long transactions elsewhere in the database keep vacuum from removing dead rows.
//
// Groups are not kept in order, so a header x-pgmq-group means nothing here. To know whether a message is the first of its
// group, a claim would have to look at the group's earlier messages, and to pass by all that wait behind a head in backoff: its
// cost would grow with what waits, just when much does. Where order matters, PGMQ's own read_grouped functions have it.
//
// # What it asks of the database
//
// PGMQ 1.5 or later, for the headers column, however it was installed and whichever version made a queue: the tables tell,
// not the number of the version. PostgreSQL's rights to select, insert, update and delete on the tables. With replicas, name
// all hosts in the connection string and add target_session_attrs=read-write.
//
// A pooler in transaction mode, such as PgBouncer, may stand between. Where it does not follow prepared statements, the first
// one that it loses tells: nothing has run then, a warning is logged, and the queue prepares none from then on. What else
// uses the pool meets the same errors, so set its ConnConfig.DefaultQueryExecMode to pgx.QueryExecModeCacheDescribe where
// such a pooler is known to be there.
//
// LISTEN asks for more: the queue's trigger, which SELECT pgmq.enable_notify_insert('orders', 250) makes in PGMQ 1.7 or
// later, and a connection to the server itself, past any pooler. The trigger notifies of the first message that is sent, and
// of none for the next 250 ms; those are found when that time is over, or by polling if their transaction took longer. All
// who send to the queue pay for the trigger: it updates one row, so that transactions which send wait for each other until
// they commit. When nothing is heard, be it that a pooler swallows notifications or that a crash of the server took the
// trigger's row, Check says so (listen_silent), a warning is logged, and the queue polls every 200 ms meanwhile, and tries
// again.
//
// Other clients may read, pop, archive and delete beside a consumer: a message is nobody else's while its vt lies ahead.
// One who makes a held message visible with pgmq.set_vt, or removes it, takes it from its holder, who gets
// backend.ErrLeaseLost. docs/pgmq.md, in this module, tells more of both, and what comes of a server's failures.
package pgmq
