-- Decisions that can be taken back.

-- name: defer_decision
-- One that has its answer makes room for the next: the call may wait again.
INSERT INTO decisions (
    id, context_id, call_id, hash, agent, tool, tenant, user_id, by, auth, origin, body, created_at, due_at, owner,
    leased_until, attempts, note, answer
)
VALUES (
    :id, :context_id, :call_id, :hash, :agent, :tool, :tenant, :user_id, :by, :auth, :origin, :body, :created_at,
    :due_at, :owner, :leased_until, :attempts, :note, :answer
)
ON CONFLICT (context_id, call_id) DO UPDATE SET id = excluded.id, hash = excluded.hash, agent = excluded.agent,
    tool = excluded.tool, tenant = excluded.tenant, user_id = excluded.user_id, by = excluded.by,
    auth = excluded.auth, origin = excluded.origin, body = excluded.body, created_at = excluded.created_at,
    due_at = excluded.due_at, owner = excluded.owner, leased_until = excluded.leased_until,
    attempts = excluded.attempts, note = excluded.note, answer = excluded.answer
WHERE decisions.answer IS NOT NULL
RETURNING id

-- name: get_decision
SELECT id, context_id, call_id, hash, agent, tool, tenant, user_id, by, auth, origin, body, created_at,
    due_at, owner, leased_until, attempts, note, answer FROM decisions
WHERE context_id = :context_id AND call_id = :call_id

-- name: list_decisions
SELECT id, context_id, call_id, hash, agent, tool, tenant, user_id, by, auth, origin, body, created_at,
    due_at, owner, leased_until, attempts, note, answer FROM decisions
WHERE context_id IN (:keys)

-- name: take_back_decision
DELETE FROM decisions
WHERE context_id = :context_id AND call_id = :call_id AND id = :id AND owner = '' AND answer IS NULL
RETURNING id

-- name: take_decisions (sqlite)
WITH due AS (
    SELECT context_id, call_id FROM decisions
    WHERE answer IS NULL AND due_at <= :now AND leased_until <= :now
    ORDER BY due_at, context_id, call_id
    LIMIT :limit
)
UPDATE decisions SET owner = :owner, leased_until = :until, attempts = attempts + 1
WHERE (context_id, call_id) IN (SELECT context_id, call_id FROM due)
RETURNING id, context_id, call_id, hash, agent, tool, tenant, user_id, by, auth, origin, body, created_at, due_at,
    owner, leased_until, attempts, note, answer

-- name: take_decisions (postgresql)
-- As of the outbox: rows that another sender is about to take are left out.
WITH due AS (
    SELECT context_id, call_id FROM decisions
    WHERE answer IS NULL AND due_at <= :now AND leased_until <= :now
    ORDER BY due_at, context_id, call_id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE decisions SET owner = :owner, leased_until = :until, attempts = attempts + 1
WHERE (context_id, call_id) IN (SELECT context_id, call_id FROM due)
RETURNING id, context_id, call_id, hash, agent, tool, tenant, user_id, by, auth, origin, body, created_at, due_at,
    owner, leased_until, attempts, note, answer

-- name: postpone_decision
UPDATE decisions SET note = :note, leased_until = :until, owner = :next_owner, attempts = :attempts
WHERE context_id = :context_id AND call_id = :call_id AND id = :id AND owner = :owner AND answer IS NULL
RETURNING id

-- name: settle_decision
UPDATE decisions SET answer = :answer, note = NULL
WHERE context_id = :context_id AND call_id = :call_id AND id = :id AND owner = :owner AND answer IS NULL
RETURNING id

-- name: find_open_decision
SELECT 1 FROM decisions
WHERE answer IS NULL
LIMIT 1

-- name: delete_settled_decisions
DELETE FROM decisions
WHERE answer IS NOT NULL AND due_at < :before
RETURNING id
