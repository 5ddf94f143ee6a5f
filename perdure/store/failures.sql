-- Calls that fail, and counts of failed attempts. PostgreSQL writes both in perdure_append_0001.

-- name: write_failing_call
INSERT INTO failing_calls (context_id, call, root, agent, tenant, user_id, kind, source, error_type, error, status,
    attempts, since, last_at, next_at)
VALUES (:context_id, :call, :root, :agent, :tenant, :user_id, :kind, :source, :error_type, :error, :status,
    1, :at, :at, :next_at)
ON CONFLICT (context_id, call) DO UPDATE SET root = excluded.root, agent = excluded.agent, kind = excluded.kind,
    source = excluded.source, error_type = excluded.error_type, error = excluded.error, status = excluded.status,
    attempts = failing_calls.attempts + 1, last_at = excluded.last_at, next_at = excluded.next_at

-- name: hold_up
UPDATE failing_calls SET held_up_at = :at
WHERE context_id = :context_id AND call = :call AND attempts >= :most AND held_up_at IS NULL

-- name: end_failing_call
DELETE FROM failing_calls
WHERE context_id = :context_id AND call = :call
RETURNING held_up_at

-- name: end_failing_calls
DELETE FROM failing_calls
WHERE context_id = :context_id
    AND kind = :kind -- if kind

-- name: has_failing_call
SELECT 1 FROM failing_calls
WHERE context_id = :context_id
LIMIT 1

-- name: count_failed_attempt
INSERT INTO failed_attempts (key, hour, agent, tenant, user_id, kind, source, status, error_type, attempts, ended)
VALUES (:key, :hour, :agent, :tenant, :user_id, :kind, :source, :status, :error_type, 1, :ended)
ON CONFLICT (key) DO UPDATE SET attempts = failed_attempts.attempts + 1, ended = failed_attempts.ended + excluded.ended

-- name: list_failing_calls
-- Those that have failed for longest first.
SELECT context_id, call, root, agent, tenant, user_id, kind, source, error_type, error, status, attempts, since, last_at,
    next_at, held_up_at FROM failing_calls
WHERE true
    AND held_up_at IS NOT NULL -- if held_up
    AND agent = :agent -- if agent
    AND tenant = :tenant -- if tenant
    AND user_id = :user -- if user
    AND (since, context_id, call) > (:since, :after_id, :after_call) -- if since
ORDER BY since, context_id, call
LIMIT :limit

-- name: list_run_failures
-- First the runs' own, then those of the runs below them: see list_run_waits in waits.sql. The ids come from the feeds:
-- a run that has never succeeded has no row in runs.
SELECT failing_calls.context_id AS run_id,
    failing_calls.context_id AS context_id, failing_calls.call AS call, failing_calls.root AS root,
    failing_calls.agent AS agent, failing_calls.tenant AS tenant, failing_calls.user_id AS user_id,
    failing_calls.kind AS kind, failing_calls.source AS source, failing_calls.error_type AS error_type,
    failing_calls.error AS error, failing_calls.status AS status, failing_calls.attempts AS attempts,
    failing_calls.since AS since, failing_calls.last_at AS last_at, failing_calls.next_at AS next_at,
    failing_calls.held_up_at AS held_up_at
FROM failing_calls
WHERE failing_calls.context_id IN (:context_ids)
    AND failing_calls.held_up_at IS NOT NULL -- if held_up
UNION ALL
SELECT feeds.context_id AS run_id,
    failing_calls.context_id AS context_id, failing_calls.call AS call, failing_calls.root AS root,
    failing_calls.agent AS agent, failing_calls.tenant AS tenant, failing_calls.user_id AS user_id,
    failing_calls.kind AS kind, failing_calls.source AS source, failing_calls.error_type AS error_type,
    failing_calls.error AS error, failing_calls.status AS status, failing_calls.attempts AS attempts,
    failing_calls.since AS since, failing_calls.last_at AS last_at, failing_calls.next_at AS next_at,
    failing_calls.held_up_at AS held_up_at
FROM feeds CROSS JOIN failing_calls
WHERE feeds.context_id IN (:context_ids)
    AND failing_calls.context_id > feeds.context_id || '/' AND failing_calls.context_id < feeds.context_id || '0'
    AND failing_calls.held_up_at IS NOT NULL -- if held_up
ORDER BY since, context_id, call
LIMIT :limit

-- name: count_held_up
SELECT count(DISTINCT root) FROM failing_calls
WHERE held_up_at IS NOT NULL
    AND agent = :agent -- if agent

-- name: remove_failing_calls
DELETE FROM failing_calls
WHERE context_id = :context_id

-- name: sum_failed_attempts
SELECT
    NULL AS name, -- if key = total
    hour AS name, -- if key = hour
    substr(hour, 1, 10) AS name, -- if key = day
    agent AS name, -- if key = agent
    tenant AS name, -- if key = tenant
    kind, source, status, error_type, sum(attempts) AS attempts, sum(ended) AS ended
FROM failed_attempts
WHERE hour >= :since
    AND hour < :until -- if until
    AND agent = :agent -- if agent
    AND source = :source -- if source
    AND tenant = :tenant -- if tenant
    AND tenant IS NULL -- if without_tenant
    AND tenant IN (:tenants) -- if tenants
    AND agent IN (:agents) -- if agents
GROUP BY
    hour, -- if key = hour
    substr(hour, 1, 10), -- if key = day
    agent, -- if key = agent
    tenant, -- if key = tenant
    kind, source, status, error_type
ORDER BY
    name DESC, -- if key = hour
    name DESC, -- if key = day
    attempts DESC, source, kind, error_type, status
LIMIT :limit
