-- Keys of requests, with their answers.

-- name: claim_key
-- A key is free when its time is over, or its request counts as lost; it is the owner's own if an answer was lost.
INSERT INTO idempotency (key, request_hash, owner, leased_until, answer, created_at, expires_at)
VALUES (:key, :request_hash, :owner, :leased_until, :answer, :created_at, :expires_at)
ON CONFLICT (key) DO UPDATE SET request_hash = excluded.request_hash, owner = excluded.owner,
    leased_until = excluded.leased_until, answer = NULL, created_at = excluded.created_at,
    expires_at = excluded.expires_at
WHERE idempotency.expires_at <= excluded.created_at
    OR (
        idempotency.answer IS NULL AND idempotency.request_hash = excluded.request_hash
        AND (idempotency.leased_until <= excluded.created_at OR idempotency.owner = excluded.owner)
    )
RETURNING key

-- name: get_key
SELECT request_hash, answer FROM idempotency
WHERE key = :key

-- name: record_answer
-- The same answer again is one whose confirmation was lost.
UPDATE idempotency SET answer = :answer
WHERE key = :key AND owner = :owner AND (answer IS NULL OR answer = :answer)
RETURNING key

-- name: free_key
DELETE FROM idempotency
WHERE key = :key AND owner = :owner AND answer IS NULL
RETURNING key

-- name: list_answers
SELECT answer FROM idempotency
WHERE key >= :prefix AND key < :end AND expires_at > :now AND answer IS NOT NULL
ORDER BY key
LIMIT :limit

-- name: delete_expired_keys
-- The time once more: on PostgreSQL only that is looked at again, of a row that was claimed meanwhile.
DELETE FROM idempotency
WHERE key IN (SELECT key FROM idempotency WHERE expires_at <= :now LIMIT :limit) AND expires_at <= :now
RETURNING key
