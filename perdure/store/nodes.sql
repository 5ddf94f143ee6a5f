-- The nodes of transcripts and their blobs. PostgreSQL writes them in perdure_commit_0001, see journal.sql.

-- name: insert_node
-- One that is there was used today.
INSERT INTO nodes (hash, parent, body, key_id, used_on)
VALUES (:hash, :parent, :body, :key_id, :used_on)
ON CONFLICT (hash) DO UPDATE SET used_on = excluded.used_on WHERE excluded.used_on > nodes.used_on

-- name: insert_blob
INSERT INTO blobs (hash, body, key_id, used_on)
VALUES (:hash, :body, :key_id, :used_on)
ON CONFLICT (hash) DO UPDATE SET used_on = excluded.used_on WHERE excluded.used_on > blobs.used_on

-- name: read_chain
-- From `head` towards the root, in any order. UNION, not UNION ALL, over hashes alone: it terminates even if altered
-- rows form a circle.
WITH RECURSIVE chain (hash, parent) AS (
    SELECT hash, parent FROM nodes WHERE hash = :head
    UNION
    SELECT above.hash, above.parent FROM nodes AS above JOIN chain ON above.hash = chain.parent
    WHERE above.hash NOT IN (:until)
)
SELECT nodes.hash, nodes.parent, nodes.body FROM nodes JOIN chain ON nodes.hash = chain.hash

-- name: read_blobs
SELECT hash, body FROM blobs
WHERE hash IN (:keys)
