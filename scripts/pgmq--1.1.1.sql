-- The objects of PGMQ that its upgrade scripts from 1.1.1 on change but never make.
-- The extension's package holds one version whole, and the scripts that lead from
-- each version to the next: with this beside them CREATE EXTENSION pgmq VERSION
-- '1.5.1' makes that version, of which all that can be called comes from the
-- scripts, except for metrics_all. For tests; installed by scripts/postgres.bash.

CREATE TABLE pgmq.meta (
	queue_name varchar UNIQUE NOT NULL,
	is_partitioned boolean NOT NULL,
	is_unlogged boolean NOT NULL,
	created_at timestamptz DEFAULT now() NOT NULL
);

CREATE TYPE pgmq.message_record AS (
	msg_id bigint,
	read_ct integer,
	enqueued_at timestamptz,
	vt timestamptz,
	message jsonb
);

CREATE TYPE pgmq.metrics_result AS (
	queue_name text,
	queue_length bigint,
	newest_msg_age_sec integer,
	oldest_msg_age_sec integer,
	total_messages bigint,
	scrape_time timestamptz
);

CREATE FUNCTION pgmq.metrics_all() RETURNS SETOF pgmq.metrics_result
LANGUAGE sql AS 'SELECT (pgmq.metrics(m.queue_name)).* FROM pgmq.meta m';
