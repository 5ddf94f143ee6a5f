-- Statements of PostgreSQL alone. The functions that write are in migrations/versions/0001_postgresql.sql.

-- name: read_store
SELECT version_num, usable_from, store_id, current_setting('transaction_isolation')
FROM perdure_version LEFT JOIN meta ON true

-- name: read_clock
SELECT clock_timestamp()

-- name: read_page
-- A page ends after the event with which it exceeds the bytes; the server sends no more than that.
SELECT seq, task_id, type, body, spans, child FROM (
    SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS bytes_before
    FROM (
        SELECT seq, task_id, type, body, spans, child FROM events
        WHERE context_id = :stream AND seq > :after
            AND child IS NULL -- if scope = root
            AND child = :child -- if scope = child
            AND (child = :child OR (child > :child_path AND child < :child_path_end)) -- if scope = child_and_below
        ORDER BY seq
        LIMIT :limit
    ) AS page
) AS sized
WHERE bytes_before <= :page_bytes
ORDER BY seq

-- name: write_agents
INSERT INTO agents (hash, name, body, created_at, seen_at)
SELECT hash, name, body, :now, :now
FROM unnest(:hashes::text[], :names::text[], :bodies::bytea[]) AS given (hash, name, body)
ON CONFLICT (hash) DO UPDATE SET seen_at = excluded.seen_at

-- name: notify
SELECT pg_notify(:channel, payload)
FROM unnest(:payloads::text[]) AS payload

-- name: list_table_sizes
SELECT relname, reltuples, pg_total_relation_size(oid) FROM pg_class
WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)

-- name: read_server
SELECT 'PostgreSQL ' || current_setting('server_version')

-- name: check_connection
SELECT 1

-- name: lock_migration
-- One process at a time migrates a database.
SELECT pg_advisory_xact_lock(:key)

-- name: list_connected_code
-- Of connections to this database, but for this one: the code that they are of.
SELECT application_name FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE :prefix || '%'

-- Copies of a store, see postgres_copy.py.

-- name: find_version_table
SELECT to_regclass('perdure_version')::text

-- name: lock_copy
SELECT pg_try_advisory_lock(:key)

-- name: lock_store_id
SELECT store_id FROM meta
FOR UPDATE

-- name: list_key_columns
SELECT attname FROM pg_index
    JOIN unnest(indkey) WITH ORDINALITY AS key (number, place) ON true
    JOIN pg_attribute ON attrelid = indrelid AND attnum = key.number
WHERE indrelid = to_regclass(:table) AND indisprimary
ORDER BY key.place

-- name: list_sized_columns
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(:table) AND attnum > 0 AND atttypid IN ('text'::regtype, 'bytea'::regtype)

-- name: find_sequence
SELECT pg_get_serial_sequence(:table, :column)

-- name: nudge
SELECT pg_notify(:channel, :payload)
