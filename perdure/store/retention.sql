-- What refers to what, and the deletion of what nothing refers to any more. See decision 039.

-- name: renew_blobs
UPDATE blobs SET used_on = :today
WHERE hash IN (:keys) AND used_on < :before

-- name: renew_nodes
UPDATE nodes SET used_on = :today
WHERE hash IN (:keys) AND used_on < :before

-- name: list_days
SELECT hash, used_on FROM nodes
WHERE hash IN (:keys)

-- name: find_targets
SELECT hash FROM blobs WHERE hash IN (:keys)
UNION ALL
SELECT hash FROM nodes WHERE hash IN (:keys)

-- name: insert_node_reference
INSERT INTO node_references (target, node)
VALUES (:target, :node)
ON CONFLICT DO NOTHING

-- name: insert_run_reference
INSERT INTO run_references (target, context_id)
VALUES (:target, :context_id)
ON CONFLICT DO NOTHING

-- name: insert_deleted_run
INSERT INTO deleted_runs (context_id, deleted_at)
VALUES (:context_id, :deleted_at)
ON CONFLICT DO NOTHING

-- name: find_deleted_runs
SELECT context_id FROM deleted_runs
WHERE context_id IN (:keys)

-- name: read_old_runs
SELECT runs.created_at, runs.context_id, COALESCE(feeds.root, runs.context_id)
FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id
WHERE runs.created_at < :before AND (runs.created_at, runs.context_id) > (:created_at, :after)
ORDER BY runs.created_at, runs.context_id
LIMIT :limit

-- name: read_tree
SELECT context_id, status, head, updated_at FROM runs WHERE context_id = :root
UNION ALL
SELECT feeds.context_id, runs.status, runs.head, runs.updated_at
FROM feeds LEFT JOIN runs ON runs.context_id = feeds.context_id
WHERE feeds.root = :root

-- name: get_feed_seq
SELECT seq FROM feeds
WHERE context_id = :root

-- name: list_turn_heads
SELECT DISTINCT head FROM turns
WHERE context_id IN (:keys) AND head IS NOT NULL

-- name: list_run_targets
SELECT DISTINCT target FROM run_references
WHERE context_id IN (:keys)

-- The rows that go with a run: one statement for each table of RUN_TABLES, and two behind the feeds.

-- name: delete_journal
DELETE FROM journal
WHERE context_id IN (:keys)

-- name: delete_runs
DELETE FROM runs
WHERE context_id IN (:keys)
RETURNING updated_at

-- name: delete_turns
DELETE FROM turns
WHERE context_id IN (:keys)

-- name: delete_sent
DELETE FROM sent
WHERE context_id IN (:keys)

-- name: delete_decisions
DELETE FROM decisions
WHERE context_id IN (:keys)

-- name: delete_bulk_runs
DELETE FROM bulk_runs
WHERE context_id IN (:keys)

-- name: delete_waits
DELETE FROM waits
WHERE context_id IN (:keys)

-- name: delete_failing_calls
DELETE FROM failing_calls
WHERE context_id IN (:keys)

-- name: delete_run_references
DELETE FROM run_references
WHERE context_id IN (:keys)

-- name: delete_memory
DELETE FROM memory
WHERE namespace IN (:keys)

-- name: delete_child_feeds
DELETE FROM feeds
WHERE root = :root

-- name: delete_root_feed
DELETE FROM feeds
WHERE context_id = :root
RETURNING seq

-- name: delete_events
DELETE FROM events
WHERE context_id = :root

-- name: delete_outbox
DELETE FROM outbox
WHERE stream = :root

-- name: read_memory
SELECT namespace, key, value FROM memory
WHERE (namespace, key) > (:namespace, :after)
ORDER BY namespace, key
LIMIT :limit

-- A node is needed by its child, and by a node whose first message replaces it; a blob by nodes and runs.

-- name: read_old_nodes
SELECT hash, used_on, length(body), parent,
    (EXISTS (SELECT 1 FROM nodes AS child WHERE child.parent = nodes.hash)
        OR EXISTS (SELECT 1 FROM node_references WHERE node_references.target = nodes.hash))
FROM nodes
WHERE used_on < :before AND (used_on, hash) > (:used_on, :after)
ORDER BY used_on, hash
LIMIT :limit

-- name: read_old_blobs
SELECT hash, used_on, length(body), NULL,
    (EXISTS (SELECT 1 FROM node_references WHERE node_references.target = blobs.hash)
        OR EXISTS (SELECT 1 FROM run_references WHERE run_references.target = blobs.hash))
FROM blobs
WHERE used_on < :before AND (used_on, hash) > (:used_on, :after)
ORDER BY used_on, hash
LIMIT :limit

-- name: delete_nodes
DELETE FROM nodes
WHERE hash IN (:keys) AND used_on < :before
    AND NOT EXISTS (SELECT 1 FROM nodes AS child WHERE child.parent = nodes.hash)
    AND NOT EXISTS (SELECT 1 FROM node_references WHERE node_references.target = nodes.hash)
RETURNING hash, used_on, length(body), parent

-- name: delete_blobs
DELETE FROM blobs
WHERE hash IN (:keys) AND used_on < :before
    AND NOT EXISTS (SELECT 1 FROM node_references WHERE node_references.target = blobs.hash)
    AND NOT EXISTS (SELECT 1 FROM run_references WHERE run_references.target = blobs.hash)
RETURNING hash, used_on, length(body), NULL

-- name: list_node_targets
SELECT DISTINCT target FROM node_references
WHERE node IN (:keys)

-- name: delete_node_references
DELETE FROM node_references
WHERE node IN (:keys)

-- name: read_nodes
SELECT hash, used_on, length(body), parent FROM nodes
WHERE hash IN (:keys) AND used_on < :before

-- name: read_holders
SELECT parent, hash FROM nodes WHERE parent IN (:keys)
UNION ALL
SELECT target, node FROM node_references WHERE target IN (:keys)
UNION ALL
SELECT target, context_id FROM run_references WHERE target IN (:keys)

-- name: find_blobs
SELECT hash FROM blobs
WHERE hash IN (:keys)
