-- Bulk actions and their runs.

-- name: insert_bulk
INSERT INTO bulk_actions (
    id, verb, filter, tenant, user_id, by, auth, origin, total, per_second, concurrency, state, created_at, ended_at,
    stopped_by
)
VALUES (
    :id, :verb, :filter, :tenant, :user_id, :by, :auth, :origin, :total, :per_second, :concurrency, :state,
    :created_at, :ended_at, :stopped_by
)
ON CONFLICT DO NOTHING
RETURNING id

-- name: insert_bulk_runs
-- `rows`: an object with the ids of the runs as its keys.
INSERT INTO bulk_runs (
    bulk_id, context_id, position, execution, agent, tenant, user_id, outcome, detail, attempts, done_at
)
SELECT :bulk_id, given.key, CAST(given.value ->> 'position' AS INTEGER), given.value ->> 'execution',
    given.value ->> 'agent', given.value ->> 'tenant', given.value ->> 'user', given.value ->> 'outcome',
    given.value ->> 'detail', 0, given.value ->> 'done_at'
FROM json_each(:rows) AS given
WHERE true
ON CONFLICT DO NOTHING

-- name: get_bulk
SELECT id, verb, filter, tenant, user_id, by, auth, origin, total, per_second, concurrency, state, created_at, ended_at,
    stopped_by FROM bulk_actions
WHERE id = :id

-- name: list_bulks
-- The newest first.
SELECT id, verb, filter, tenant, user_id, by, auth, origin, total, per_second, concurrency, state, created_at, ended_at,
    stopped_by FROM bulk_actions
WHERE true
    AND (created_at, id) < (:last_at, :last_id) -- if last_at
ORDER BY created_at DESC, id DESC
LIMIT :limit

-- name: end_bulk
UPDATE bulk_actions SET state = :state, ended_at = :now, stopped_by = :by
WHERE id = :id AND state = 'running'
RETURNING id

-- name: list_bulk_runs
SELECT context_id, position, execution, agent, tenant, user_id, outcome, detail, attempts, done_at FROM bulk_runs
WHERE bulk_id = :bulk_id AND position > :after
    AND outcome = :outcome -- if outcome
ORDER BY position
LIMIT :limit

-- name: count_bulk_runs
SELECT bulk_id, outcome, count(*) FROM bulk_runs
WHERE bulk_id IN (:keys)
GROUP BY bulk_id, outcome

-- name: begin_bulk_run
UPDATE bulk_runs SET attempts = attempts + 1
WHERE bulk_id = :bulk_id AND context_id = :context_id AND outcome = 'pending'
    AND EXISTS (SELECT 1 FROM bulk_actions WHERE id = :bulk_id AND state = 'running')
RETURNING attempts

-- name: settle_bulk_run
UPDATE bulk_runs SET outcome = :outcome, detail = :detail, done_at = :now
WHERE bulk_id = :bulk_id AND context_id = :context_id AND outcome = 'pending'
RETURNING context_id

-- name: find_old_bulks
SELECT id FROM bulk_actions
WHERE COALESCE(ended_at, created_at) < :before
ORDER BY id
LIMIT :limit

-- name: delete_bulk_runs_of
DELETE FROM bulk_runs
WHERE bulk_id IN (:keys)

-- name: delete_bulks
DELETE FROM bulk_actions
WHERE id IN (:keys)
RETURNING id
