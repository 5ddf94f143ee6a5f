-- Runs and their turns. PostgreSQL writes them in perdure_commit_0001, see journal.sql.

-- name: write_run
-- Not the row of another's run, nor one that was asked for later.
INSERT INTO runs (
    context_id, agent, scope, head, status, iterations, result, asked_at, created_at, updated_at, tenant, user_id,
    key_id, first_message, error_type, error
)
VALUES (
    :context_id, :agent, :scope, :head, :status, :iterations, :result, :asked_at, :created_at, :updated_at, :tenant,
    :user_id, :key_id, :first_message, :error_type, :error
)
ON CONFLICT (context_id) DO UPDATE SET agent = excluded.agent, scope = excluded.scope, head = excluded.head,
    status = excluded.status, iterations = excluded.iterations, result = excluded.result,
    asked_at = excluded.asked_at, updated_at = excluded.updated_at, tenant = excluded.tenant,
    user_id = excluded.user_id, key_id = excluded.key_id,
    first_message = COALESCE(runs.first_message, excluded.first_message),
    error_type = excluded.error_type, error = excluded.error
WHERE excluded.asked_at >= runs.asked_at
    AND runs.tenant IS NOT DISTINCT FROM excluded.tenant AND runs.user_id IS NOT DISTINCT FROM excluded.user_id

-- name: get_labels
SELECT tenant, user_id FROM runs
WHERE context_id = :context_id

-- name: get_run
SELECT runs.context_id, agent, scope, head, status, iterations, result, asked_at, created_at, updated_at, feeds.root,
    tenant, user_id, first_message, error_type, error
FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id
WHERE runs.context_id = :context_id

-- name: get_runs
-- Without their results.
SELECT runs.context_id, agent, scope, head, status, iterations, NULL, asked_at, created_at, updated_at, feeds.root,
    tenant, user_id, first_message, error_type, error
FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id
WHERE runs.context_id IN (:keys)

-- name: list_runs
-- The newest first, without their results.
SELECT runs.context_id, agent, scope, head, status, iterations, NULL, asked_at, created_at, updated_at, feeds.root,
    tenant, user_id, first_message, error_type, error
FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id
WHERE true
    AND agent = :agent -- if agent
    AND status = :status -- if status
    AND tenant = :tenant -- if tenant
    AND user_id = :user -- if user
    AND feeds.root IS NULL -- if roots
    AND created_at >= :created_from -- if created_from
    AND created_at < :created_before -- if created_before
    AND (created_at, runs.context_id) < (:at, :after) -- if after
ORDER BY created_at DESC, runs.context_id DESC
LIMIT :limit

-- part: scanned_runs
-- Which runs a search looks at.
AND error_type IS NOT NULL -- if failing
AND agent = :agent -- if agent
AND status = :status -- if status
AND tenant = :tenant -- if tenant
AND user_id = :user -- if user
AND feeds.root IS NULL -- if roots
AND created_at >= :created_from -- if created_from
AND created_at < :created_before -- if created_before
AND updated_at >= :failed_from -- if failed_from
AND (created_at, runs.context_id) < (:at, :after) -- if after

-- name: search_runs
-- The newest first, without their results: those of the first `scan` runs that have the words, and the error.
SELECT context_id, agent, scope, head, status, iterations, NULL, asked_at, created_at, updated_at, root, tenant, user_id,
    first_message, error_type, error
FROM (
    SELECT runs.context_id AS context_id, agent, scope, head, status, iterations, asked_at, created_at, updated_at,
        feeds.root AS root, tenant, user_id, first_message, error_type, error
    FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id
    WHERE true
        -- include: scanned_runs
    ORDER BY created_at DESC, runs.context_id DESC
    LIMIT :scan
) AS scanned
WHERE true
    AND error_type = :error -- if error
    AND updated_at >= :updated_from -- if updated_from
    AND NOT EXISTS ( -- if words
        SELECT 1 FROM json_each(:words) AS word -- if words
        WHERE lower(context_id || ' ' || COALESCE(first_message, '') || ' ' || COALESCE(error, '')) -- if words
            NOT LIKE '%' || word.key || '%' ESCAPE '\' -- if words
    ) -- if words
ORDER BY created_at DESC, context_id DESC
LIMIT :limit

-- name: find_scan_end
-- The last run that a search looks at; no row if there are fewer.
SELECT created_at, runs.context_id
FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id
WHERE true
    -- include: scanned_runs
ORDER BY created_at DESC, runs.context_id DESC
LIMIT 1 OFFSET :skipped

-- name: find_first_messages
-- Among the first events of root runs: for those that have no row yet.
SELECT context_id, body FROM events
WHERE context_id IN (:keys) AND seq <= 8 AND child IS NULL AND type = 'message.injected'
ORDER BY context_id, seq

-- name: count_failures
-- By error, the most frequent first. `sessions`: as of sum_usage.
SELECT error_type, count(*), max(updated_at) FROM runs
WHERE error_type IS NOT NULL AND updated_at >= :since
    AND tenant IN (:tenants) -- if tenants
    AND agent IN (:agents) -- if agents
    AND EXISTS ( -- if sessions
        SELECT 1 FROM json_each(:sessions) AS session -- if sessions
        WHERE context_id = session.key -- if sessions
            OR substr(context_id, 1, length(session.key) + 1) = session.key || '/' -- if sessions
    ) -- if sessions
GROUP BY error_type
ORDER BY 2 DESC, error_type
LIMIT :limit

-- name: write_turn
-- Not one that was asked for later.
INSERT INTO turns (context_id, task_id, status, head, result, asked_at, created_at, updated_at, key_id)
VALUES (:context_id, :task_id, :status, :head, :result, :asked_at, :created_at, :updated_at, :key_id)
ON CONFLICT (context_id, task_id) DO UPDATE SET status = excluded.status, head = excluded.head,
    result = excluded.result, asked_at = excluded.asked_at, updated_at = excluded.updated_at, key_id = excluded.key_id
WHERE excluded.asked_at >= turns.asked_at

-- name: insert_sent_message
INSERT INTO sent (context_id, message_id, task_id)
VALUES (:context_id, :message_id, :task_id)
ON CONFLICT DO NOTHING

-- name: get_turn
SELECT status, head, result, asked_at FROM turns
WHERE context_id = :context_id AND task_id = :task_id

-- name: list_turns
-- The newest first, without their results.
SELECT context_id, task_id, status, head, asked_at, created_at, updated_at FROM turns
WHERE context_id = :context_id
    AND (created_at, task_id) < (:at, :after) -- if after
ORDER BY created_at DESC, task_id DESC
LIMIT :limit

-- name: find_message_turn
SELECT task_id FROM sent
WHERE context_id = :context_id AND message_id = :message_id
