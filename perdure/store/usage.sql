-- The usage of model calls: a row for each. PostgreSQL writes it in perdure_commit_0001, see journal.sql.

-- name: insert_usage
INSERT INTO usage (
    context_id, agent, purpose, provider, model, status, requests, input_tokens, output_tokens, cached_tokens,
    cache_write_tokens, reasoning_tokens, cost_usd, milliseconds, task_id, root, tenant, user_id, key, created_at
)
VALUES (
    :context_id, :agent, :purpose, :provider, :model, :status, :requests, :input_tokens, :output_tokens,
    :cached_tokens, :cache_write_tokens, :reasoning_tokens, :cost_usd, :milliseconds, :task_id, :root, :tenant,
    :user_id, :key, :created_at
)
ON CONFLICT DO NOTHING

-- name: list_usage
-- The newest first.
SELECT context_id, agent, purpose, provider, model, status, requests, input_tokens, output_tokens,
    cached_tokens, cache_write_tokens, reasoning_tokens, cost_usd, milliseconds, task_id, root, tenant,
    user_id, key, created_at FROM usage
WHERE created_at >= :since
    AND tenant = :tenant -- if tenant
    AND agent = :agent -- if agent
ORDER BY created_at DESC, key
LIMIT :limit

-- name: sum_run_usage
-- Of runs with all runs below them, by the index of the same expression.
SELECT coalesce(root, context_id), count(*), sum(input_tokens + output_tokens), sum(cost_usd) FROM usage
WHERE coalesce(root, context_id) IN (:keys)
GROUP BY 1

-- name: sum_usage
-- `sessions`: an object with their ids as keys, as both databases read it; their runs and those below them.
-- One pass over the rows of the time, by the index of created_at; sums are few, and are read twice for their total.
-- agent || '', not the column alone: SQLite would read its index from end to end, whatever the time, and the rows in
-- its order.
WITH sums AS (
    SELECT
        substr(created_at, 1, 13) AS name, -- if key = hour
        substr(created_at, 1, 10) AS name, -- if key = day
        agent || '' AS name, -- if key = agent
        provider || ':' || model AS name, -- if key = model
        tenant AS name, -- if key = tenant
        coalesce(root, context_id) AS name, -- if key = run
        count(*) AS calls, sum(CASE WHEN status = 'completed' THEN 0 ELSE 1 END) AS errors,
        sum(input_tokens) AS input_tokens, sum(cached_tokens) AS cached_tokens, sum(output_tokens) AS output_tokens,
        sum(cost_usd) AS cost_usd, count(*) - count(cost_usd) AS unpriced_calls, sum(milliseconds) AS milliseconds
    FROM usage
    WHERE created_at >= :since
        AND created_at < :until -- if until
        AND agent = :agent -- if agent
        AND provider || ':' || model = :model -- if model
        AND tenant = :tenant -- if tenant
        AND tenant IS NULL -- if without_tenant
        AND tenant IN (:tenants) -- if tenants
        AND agent IN (:agents) -- if agents
        AND EXISTS ( -- if sessions
            SELECT 1 FROM json_each(:sessions) AS session -- if sessions
            WHERE context_id = session.key -- if sessions
                OR substr(context_id, 1, length(session.key) + 1) = session.key || '/' -- if sessions
        ) -- if sessions
    GROUP BY 1
), listed AS (
    SELECT 1 AS part, name, calls, errors, input_tokens, cached_tokens, output_tokens, cost_usd, unpriced_calls,
        milliseconds
    FROM sums
    ORDER BY name DESC -- if by_time
    ORDER BY cost_usd DESC NULLS LAST, input_tokens + output_tokens DESC, name -- if not by_time
    LIMIT :limit
)
SELECT 0 AS part, CAST(count(*) AS TEXT) AS name, sum(calls), sum(errors), sum(input_tokens), sum(cached_tokens),
    sum(output_tokens), sum(cost_usd), sum(unpriced_calls), sum(milliseconds)
FROM sums
UNION ALL
SELECT part, name, calls, errors, input_tokens, cached_tokens, output_tokens, cost_usd, unpriced_calls, milliseconds
FROM listed
