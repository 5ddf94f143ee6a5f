-- Events, their feeds, and what they change in waits and outbox. PostgreSQL writes them by the function
-- perdure_append_0001 (migrations/versions/0001_postgresql.sql) and reads pages by a statement of postgres.sql.

-- name: lock_feed
-- Creates the row, or locks it until the transaction ends: the order of numbers is that of the commits.
INSERT INTO feeds (context_id, seq, token, open, first_delta, root, path, failing)
VALUES (:context_id, :seq, :token, :open, :first_delta, :root, :path, :failing)
ON CONFLICT (context_id) DO UPDATE SET seq = feeds.seq
RETURNING context_id, seq, token, open, first_delta, root, path, failing

-- name: update_feed
UPDATE feeds SET seq = :seq, token = :token, open = :open, first_delta = :first_delta, path = :path,
    failing = :failing
WHERE context_id = :context_id

-- name: update_feed_seq
UPDATE feeds SET seq = :seq
WHERE context_id = :context_id

-- name: insert_event
-- Only conflicts of keys are ignored: two events of one number would be a bug, and raise.
INSERT INTO events (context_id, seq, task_id, type, key, body, spans, child, key_id)
VALUES (:context_id, :seq, :task_id, :type, :key, :body, :spans, :child, :key_id)
ON CONFLICT (context_id, key) WHERE key IS NOT NULL DO NOTHING

-- name: find_event_keys
SELECT key FROM events
WHERE context_id = :stream AND key IN (:keys)

-- name: list_deltas
SELECT seq FROM events
WHERE context_id = :stream AND seq >= :first AND type = 'model.delta'
    AND child IS NULL -- if not child
    AND child = :child -- if child
ORDER BY seq

-- name: delete_deltas
DELETE FROM events
WHERE context_id = :stream AND seq >= :first AND type = 'model.delta'
    AND child IS NULL -- if not child
    AND child = :child -- if child

-- name: get_event
SELECT task_id, type, body FROM events
WHERE context_id = :stream AND seq = :seq

-- name: write_wait
INSERT INTO waits (
    context_id, call_id, root, seq, kind, agent, tool, hash, created_at, expires_at, summary, amount
)
VALUES (
    :context_id, :call_id, :root, :seq, :kind, :agent, :tool, :hash, :created_at, :expires_at, :summary, :amount
)
ON CONFLICT (context_id, call_id) DO UPDATE SET root = excluded.root, seq = excluded.seq, kind = excluded.kind,
    agent = excluded.agent, tool = excluded.tool, hash = excluded.hash, created_at = excluded.created_at,
    expires_at = excluded.expires_at, summary = excluded.summary, amount = excluded.amount

-- name: delete_wait
DELETE FROM waits
WHERE context_id = :context_id AND call_id = :call_id

-- name: delete_waits
DELETE FROM waits
WHERE context_id = :context_id

-- name: insert_outbox
INSERT INTO outbox (stream, seq, target, context_id, type, created_at, taken, owner, leased_until)
VALUES (:stream, :seq, :target, :context_id, :type, :created_at, :taken, :owner, :leased_until)
ON CONFLICT DO NOTHING

-- name: insert_webhook_outbox
-- Only while a webhook is enabled: a store without one writes no rows, and a new one counts from its commit on.
INSERT INTO outbox (stream, seq, target, context_id, type, created_at, taken, owner, leased_until)
SELECT :stream, :seq, :target, :context_id, :type, :created_at, :taken, :owner, :leased_until
WHERE EXISTS (SELECT 1 FROM webhooks WHERE enabled = 1)

-- name: read_page
-- `child`: of that run alone; a range, not LIKE: the index has it, and an id may contain pattern characters. Texts are
-- compared by code points.
SELECT seq, task_id, type, body, spans, child FROM events
WHERE context_id = :stream AND seq > :after
    AND child IS NULL -- if scope = root
    AND child = :child -- if scope = child
    AND (child = :child OR (child > :child_path AND child < :child_path_end)) -- if scope = child_and_below
ORDER BY seq
LIMIT :limit

-- name: list_feed_roots
SELECT context_id, root, path FROM feeds
WHERE context_id IN (:keys)

-- name: list_latest_seqs
SELECT context_id,
    COALESCE((SELECT of_root.seq FROM feeds AS of_root WHERE of_root.context_id = feeds.root), seq),
    COALESCE(root, context_id)
FROM feeds
WHERE context_id IN (:keys)
