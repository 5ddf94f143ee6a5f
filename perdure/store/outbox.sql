-- Events that are to be delivered. They are written with their events, see event_log.sql.

-- name: take_outbox (sqlite)
-- In WITH: a plan may run a subquery again for each row, and would take more than the limit.
WITH free AS (
    SELECT stream, seq, target FROM outbox
    WHERE target = :target AND leased_until <= :now
    ORDER BY created_at, stream, seq
    LIMIT :limit
)
UPDATE outbox SET owner = :owner, leased_until = :until, taken = taken + 1
WHERE (stream, seq, target) IN (SELECT stream, seq, target FROM free)
RETURNING stream, seq, target, context_id, type, created_at, taken

-- name: take_outbox (postgresql)
-- Rows that another deliverer is about to take are left out; on SQLite there is one writer at a time.
WITH free AS (
    SELECT stream, seq, target FROM outbox
    WHERE target = :target AND leased_until <= :now
    ORDER BY created_at, stream, seq
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox SET owner = :owner, leased_until = :until, taken = taken + 1
WHERE (stream, seq, target) IN (SELECT stream, seq, target FROM free)
RETURNING stream, seq, target, context_id, type, created_at, taken

-- name: delete_outbox
DELETE FROM outbox
WHERE stream = :stream AND seq = :seq AND target = :target AND owner = :owner
RETURNING seq
