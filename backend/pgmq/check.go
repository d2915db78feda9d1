package pgmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redeliver/redeliver/backend"
)

// Check compares the database with what a queue needs. Fatal findings, which Subscribe refuses too: extension_missing,
// queue_not_found, dead_letter_queue_not_found, archive_not_found, column_missing, privilege_missing. Others are warnings:
// no_vt_index, unlogged, partitioned, read_only; with Options.Listen, listen_silent, for which it listens for two seconds at most.
func (q *Queue) Check(ctx context.Context, _ backend.Needs) ([]backend.Finding, error) {
	l, err := q.probe(ctx)
	if err != nil {
		return nil, q.errorf("check", err)
	}
	found := q.findings(l)
	if q.opts.Listen != nil && l.queue.exists {
		if err := q.listenFault(ctx); err != nil {
			found = append(found, backend.Finding{Code: "listen_silent", Err: err,
				Text: "no notifications arrive, so that messages are found by polling: " + err.Error()})
		}
	}
	return found, nil
}

// findings tells what is wrong with a layout.
func (q *Queue) findings(l layout) []backend.Finding {
	var found []backend.Finding
	add := func(fatal bool, code string, is error, format string, args ...any) {
		found = append(found, backend.Finding{Fatal: fatal, Code: code, Text: fmt.Sprintf(format, args...), Err: is})
	}
	if !l.schema {
		add(true, "extension_missing", backend.ErrQueueNotFound,
			"the database has no schema pgmq: install PGMQ 1.5 or later there, with CREATE EXTENSION pgmq or its SQL file, then call Queue.Create")
		return found
	}
	if !l.usage {
		add(true, "privilege_missing", nil, "the database user may not use the schema pgmq: GRANT USAGE ON SCHEMA pgmq TO it")
		return found
	}
	if !l.queue.exists {
		add(true, "queue_not_found", backend.ErrQueueNotFound,
			"there is no queue %q (table pgmq.q_%s): call Queue.Create, or SELECT pgmq.create('%[1]s')", q.name, q.name)
	}
	if !l.dead.exists {
		add(true, "dead_letter_queue_not_found", backend.ErrQueueNotFound,
			"there is no dead-letter queue %q (table pgmq.q_%s): call Queue.Create, or SELECT pgmq.create('%[1]s')", q.dead, q.dead)
	}
	archiving := !q.opts.DeleteOnSuccess
	if archiving && l.queue.exists && !l.archive.exists {
		add(true, "archive_not_found", nil,
			"queue %q has no archive (table pgmq.a_%[1]s): create it, or set Options.DeleteOnSuccess", q.name)
	}
	for _, part := range []struct {
		name   string
		table  table
		used   bool
		rights []string
	}{
		{"q_" + q.name, l.queue, true, []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{"q_" + q.dead, l.dead, true, []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{"a_" + q.name, l.archive, archiving, []string{"INSERT"}},
	} {
		if !part.table.exists || !part.used {
			continue
		}
		if strings.HasPrefix(part.name, "q_") && !part.table.has("headers") {
			add(true, "column_missing", nil,
				"table pgmq.%s has no column headers: it is from a PGMQ before 1.5: upgrade with ALTER EXTENSION pgmq UPDATE, or with PGMQ's upgrade scripts where it is installed by SQL alone", part.name)
		}
		var lacks []string
		for _, right := range part.rights {
			if slices.Contains(part.table.lacks, right) {
				lacks = append(lacks, right)
			}
		}
		if lacks != nil {
			list := strings.Join(lacks, ", ")
			add(true, "privilege_missing", nil, "the database user lacks %s on table pgmq.%s: GRANT %[1]s ON pgmq.%[2]s TO it", list, part.name)
		}
		if part.table.unlogged {
			add(false, "unlogged", nil,
				"table pgmq.%s is unlogged: after a crash or a failover of the server its messages are gone; use a queue made by pgmq.create", part.name)
		}
	}
	if l.queue.exists && !l.queue.vtIndex {
		add(false, "no_vt_index", nil,
			"table pgmq.q_%s has no index on vt, so that each receive reads the messages that wait too: CREATE INDEX ON pgmq.q_%[1]s (vt)", q.name)
	}
	if l.queue.partitioned {
		add(false, "partitioned", nil,
			"table pgmq.q_%s is partitioned: its retention drops partitions with messages that were not handled yet; set it longer than any retry", q.name)
	}
	if l.recovering {
		add(false, "read_only", nil,
			"the server is a standby and takes no writes: connect to the primary (target_session_attrs=read-write in the connection string)")
	}
	return found
}

// refuse returns an error that holds the fatal findings.
func (q *Queue) refuse(op string, findings []backend.Finding) error {
	var fatal []error
	for _, f := range findings {
		if f.Fatal {
			fatal = append(fatal, f)
		}
	}
	if fatal == nil {
		return nil
	}
	return q.errorf(op, errors.Join(fatal...))
}
