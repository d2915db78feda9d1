package pgmq

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/internal/jsontext"
)

const headerGroup = "x-pgmq-group"

// Publish implements backend.Publisher. The messages are sent in one statement, all or none, and get msg_ids in their order.
// Bodies must be JSON that PostgreSQL's jsonb takes: UTF-8, without \u0000 and without halves of surrogate pairs. Groups are
// refused, since this backend keeps no order; a header x-pgmq-group passes as any other.
func (q *Queue) Publish(ctx context.Context, msgs ...backend.Message) error {
	if q.isClosed() {
		return q.errorf("publish", backend.ErrClosed)
	}
	if len(msgs) == 0 {
		return nil
	}
	rows, err := encode(msgs)
	if err != nil {
		return q.errorf("publish", err)
	}
	err = q.exec(ctx, q.insert(), rows.bodies, rows.headers)
	switch {
	case refusesData(err):
		return q.errorf("publish", q.blame(ctx, rows, err))
	case unknown(err):
		return q.errorf("publish", fmt.Errorf("%w: the connection ended before the server answered; publishing again may send the messages twice: %w", backend.ErrUnknown, err))
	case err != nil:
		return q.errorf("publish", q.explain(err))
	}
	q.wake(0)
	return nil
}

// PublishTx sends messages in a transaction of the caller's, one of the queue's database: they are there for consumers once
// it is committed, and never if it is rolled back, so that a change in the database and the message that tells of it happen
// together. The transaction may be that of InTx, also for another queue. Consumers find the messages by polling (see
// Options.PollInterval), those of this process too.
//
// Messages and errors are as for Publish. After an error of the server the transaction can only be rolled back; a message that
// Publish would refuse without asking the server is refused before anything is sent, and leaves the transaction as it was.
func (q *Queue) PublishTx(ctx context.Context, tx pgx.Tx, msgs ...backend.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	rows, err := encode(msgs)
	if err != nil {
		return q.errorf("publish", err)
	}
	_, err = tx.Exec(ctx, q.insert(), rows.bodies, rows.headers)
	if refusesData(err) {
		err = fmt.Errorf("%w: %w", backend.ErrInvalidMessage, err)
	}
	return q.errorf("publish", q.explain(err))
}

func (q *Queue) insert() string {
	return fmt.Sprintf(`INSERT INTO pgmq."q_%s" (vt, enqueued_at, message, headers)
SELECT clock_timestamp(), clock_timestamp(), t.body::jsonb, t.headers::jsonb
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY t(body, headers, n) ORDER BY t.n`, q.name)
}

// encoded are messages as the columns of a table.
type encoded struct{ ids, bodies, headers []string }

func encode(msgs []backend.Message) (encoded, error) {
	n := len(msgs)
	e := encoded{make([]string, n), make([]string, n), make([]string, n)}
	for i, m := range msgs {
		if m.ID == "" {
			m.ID = backend.NewID()
		}
		if err := check(m); err != nil {
			return encoded{}, err
		}
		e.ids[i], e.bodies[i], e.headers[i] = m.ID, string(m.Body), encodeHeaders(m)
	}
	return e, nil
}

// check refuses what the database would not take, or not give back as it was.
func check(m backend.Message) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if m.Group != "" {
		return fmt.Errorf("%w: message %q: Group is set, and this backend keeps no order: leave it empty, or set the header %q for consumers that know it",
			backend.ErrInvalidMessage, m.ID, headerGroup)
	}
	if fault := jsonFault(m.Body); fault != "" {
		return fmt.Errorf("%w: message %q: the body %s: PGMQ stores JSON, so wrap other data in a JSON string", backend.ErrInvalidMessage, m.ID, fault)
	}
	return nil
}

// blame finds the message that the server refused.
func (q *Queue) blame(ctx context.Context, rows encoded, refused error) error {
	for i, id := range rows.ids {
		err := q.exec(ctx, "SELECT $1::text::jsonb IS NULL, $2::text::jsonb IS NULL", rows.bodies[i], rows.headers[i])
		if refusesData(err) {
			return fmt.Errorf("%w: message %q (number %d of the call): %w", backend.ErrInvalidMessage, id, i, err)
		}
	}
	return fmt.Errorf("%w: %w", backend.ErrInvalidMessage, refused)
}

// encodeHeaders returns a message's headers as JSON, its ID among them.
func encodeHeaders(m backend.Message) string {
	b := append([]byte(nil), `{"`+backend.HeaderID+`":`...)
	b = jsontext.AppendString(b, m.ID)
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		b = append(b, ',')
		b = jsontext.AppendString(b, name)
		b = append(b, ':')
		b = jsontext.AppendString(b, m.Headers[name])
	}
	return string(append(b, '}'))
}

// jsonFault says why jsonb would not take a text, or nothing. Numbers beyond its range are left to the server.
func jsonFault(body []byte) string {
	switch {
	case !utf8.Valid(body):
		return "is not UTF-8"
	case !json.Valid(body):
		return "is not JSON"
	}
	high := false // the last escape was the first half of a pair
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			if high {
				return `holds half of a surrogate pair`
			}
			continue
		}
		i++
		if body[i] != 'u' {
			if high {
				return `holds half of a surrogate pair`
			}
			continue
		}
		unit := hex4(body[i+1 : i+5])
		i += 4
		low := 0xDC00 <= unit && unit <= 0xDFFF
		if unit == 0 {
			return `holds \u0000`
		}
		if high != low {
			return `holds half of a surrogate pair`
		}
		high = 0xD800 <= unit && unit <= 0xDBFF
	}
	return ""
}

// hex4 reads four digits that json.Valid has checked.
func hex4(digits []byte) (unit int) {
	for _, c := range digits {
		unit <<= 4
		switch {
		case c <= '9':
			unit |= int(c - '0')
		default:
			unit |= int(c|0x20-'a') + 10
		}
	}
	return unit
}
