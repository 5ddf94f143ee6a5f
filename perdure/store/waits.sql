-- The inbox: calls that wait for a person or a client. What events change in it is in event_log.sql.

-- name: list_waits
-- The oldest first; `by_expiry` those that expire, the soonest first.
SELECT waits.context_id, call_id, root, kind, agent, tool, hash, created_at, expires_at, events.body
FROM waits LEFT JOIN events ON events.context_id = waits.root AND events.seq = waits.seq
WHERE true
    AND expires_at IS NOT NULL -- if by_expiry
    AND agent = :agent -- if agent
    AND kind = :kind -- if kind
    AND (created_at, waits.context_id, call_id) > (:created_at, :context_id, :call_id) -- if created_at
    AND (expires_at, waits.context_id, call_id) > (:expires_at, :context_id, :call_id) -- if expires_at
ORDER BY
    created_at, -- if not by_expiry
    expires_at, -- if by_expiry
    waits.context_id, call_id
LIMIT :limit

-- name: list_run_waits
-- First the runs' own, then those of the runs below them, whose ids have theirs and a slash before their own; "0" is
-- the character after it. CROSS JOIN: SQLite then looks for each run's range in the key of the waits.
SELECT waits.context_id AS run_id, waits.context_id AS context_id, waits.call_id AS call_id, waits.root AS root,
    waits.kind AS kind, waits.agent AS agent, waits.tool AS tool, waits.hash AS hash, waits.created_at AS created_at,
    waits.expires_at AS expires_at
FROM waits
WHERE waits.context_id IN (:context_ids)
UNION ALL
SELECT runs.context_id AS run_id, waits.context_id AS context_id, waits.call_id AS call_id, waits.root AS root,
    waits.kind AS kind, waits.agent AS agent, waits.tool AS tool, waits.hash AS hash, waits.created_at AS created_at,
    waits.expires_at AS expires_at
FROM runs CROSS JOIN waits
WHERE runs.context_id IN (:context_ids)
    AND waits.context_id > runs.context_id || '/' AND waits.context_id < runs.context_id || '0'
ORDER BY created_at, context_id, call_id
LIMIT :limit

-- name: list_runs_at_work
SELECT runs.context_id FROM runs JOIN feeds ON feeds.context_id = runs.context_id
WHERE runs.context_id IN (:context_ids) AND feeds.token > runs.asked_at || '/~'

-- name: count_waits
SELECT count(*) FROM waits
WHERE true
    AND agent = :agent -- if agent

-- name: put_wait
INSERT INTO waits (context_id, call_id, root, seq, kind, agent, tool, hash, created_at, expires_at)
VALUES (:context_id, :call_id, :root, :seq, :kind, :agent, :tool, :hash, :created_at, :expires_at)
ON CONFLICT (context_id, call_id) DO NOTHING
RETURNING call_id

-- name: remove_wait
DELETE FROM waits
WHERE context_id = :context_id AND call_id = :call_id
    AND hash = :hash -- if hash
