-- The memory that conversations share. PostgreSQL writes it in perdure_commit_0001, see journal.sql.

-- name: insert_value
INSERT INTO memory (namespace, key, value, updated_at, key_id)
VALUES (:namespace, :key, :value, :updated_at, :key_id)
ON CONFLICT DO NOTHING

-- name: lock_value
-- Until the transaction ends, if the value is the one that was read.
UPDATE memory SET updated_at = :now
WHERE namespace = :namespace AND key = :key AND value = :before

-- name: write_value
INSERT INTO memory (namespace, key, value, updated_at, key_id)
VALUES (:namespace, :key, :value, :updated_at, :key_id)
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at,
    key_id = excluded.key_id

-- name: delete_value
DELETE FROM memory
WHERE namespace = :namespace AND key = :key

-- name: recall
SELECT value FROM memory
WHERE namespace = :namespace AND key = :key

-- name: recall_all
SELECT key, value FROM memory
WHERE namespace = :namespace AND key >= :prefix
    AND key < :prefix_end -- if prefix_end
ORDER BY key
LIMIT :limit
