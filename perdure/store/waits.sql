-- The inbox: calls that wait for a person or a client. What events change in it is in event_log.sql.

-- name: list_waits
-- The longest waiting first; with order "expiry" those that expire, the soonest first; with order "amount" those that
-- have one, the largest first. With a group, the calls of each tool, user or tenant together. `text` is the pattern of
-- a search. A row of the cursor has all that the order has.
SELECT waits.context_id, waits.call_id, waits.root, waits.kind, waits.agent, waits.tool, waits.hash, waits.created_at,
    waits.expires_at, waits.summary, waits.amount, runs.tenant, runs.user_id, events.body
FROM waits LEFT JOIN runs ON runs.context_id = waits.context_id
    LEFT JOIN events ON events.context_id = waits.root AND events.seq = waits.seq
WHERE true
    AND waits.expires_at IS NOT NULL -- if order = expiry
    AND waits.amount IS NOT NULL -- if order = amount
    AND waits.agent = :agent -- if agent
    AND waits.kind = :kind -- if kind
    AND waits.tool = :tool -- if tool
    AND runs.tenant = :tenant -- if tenant
    AND runs.user_id = :user -- if user
    AND lower(waits.summary || ' ' || waits.tool || ' ' || waits.context_id) LIKE :text ESCAPE '!' -- if text
    AND (waits.created_at, waits.context_id, waits.call_id) > (:time, :context_id, :call_id) -- if place = since
    AND (waits.expires_at, waits.context_id, waits.call_id) > (:time, :context_id, :call_id) -- if place = expiry
    AND (-waits.amount, waits.context_id, waits.call_id) > (:less, :context_id, :call_id) -- if place = amount
    AND (waits.tool, waits.created_at, waits.context_id, waits.call_id) > (:name, :time, :context_id, :call_id) -- if place = tool_since
    AND (waits.tool, waits.expires_at, waits.context_id, waits.call_id) > (:name, :time, :context_id, :call_id) -- if place = tool_expiry
    AND (waits.tool, -waits.amount, waits.context_id, waits.call_id) > (:name, :less, :context_id, :call_id) -- if place = tool_amount
    AND (COALESCE(runs.user_id, ''), waits.created_at, waits.context_id, waits.call_id) > (:name, :time, :context_id, :call_id) -- if place = user_since
    AND (COALESCE(runs.user_id, ''), waits.expires_at, waits.context_id, waits.call_id) > (:name, :time, :context_id, :call_id) -- if place = user_expiry
    AND (COALESCE(runs.user_id, ''), -waits.amount, waits.context_id, waits.call_id) > (:name, :less, :context_id, :call_id) -- if place = user_amount
    AND (COALESCE(runs.tenant, ''), waits.created_at, waits.context_id, waits.call_id) > (:name, :time, :context_id, :call_id) -- if place = tenant_since
    AND (COALESCE(runs.tenant, ''), waits.expires_at, waits.context_id, waits.call_id) > (:name, :time, :context_id, :call_id) -- if place = tenant_expiry
    AND (COALESCE(runs.tenant, ''), -waits.amount, waits.context_id, waits.call_id) > (:name, :less, :context_id, :call_id) -- if place = tenant_amount
ORDER BY
    waits.tool, -- if group = tool
    COALESCE(runs.user_id, ''), -- if group = user
    COALESCE(runs.tenant, ''), -- if group = tenant
    waits.created_at, -- if order = since
    waits.expires_at, -- if order = expiry
    -waits.amount, -- if order = amount
    waits.context_id, waits.call_id
LIMIT :limit

-- name: count_wait_groups
-- How many calls wait of each tool, user or tenant, most first.
SELECT name, count(*) AS waiting
FROM (
    SELECT CASE :group
        WHEN 'tool' THEN waits.tool
        WHEN 'user' THEN COALESCE(runs.user_id, '')
        ELSE COALESCE(runs.tenant, '') END AS name
    FROM waits LEFT JOIN runs ON runs.context_id = waits.context_id
    WHERE true
        AND waits.agent = :agent -- if agent
        AND waits.kind = :kind -- if kind
) AS named
GROUP BY name
ORDER BY waiting DESC, name
LIMIT :limit

-- name: list_run_waits
-- First the runs' own, then those of the runs below them, whose ids have theirs and a slash before their own; "0" is
-- the character after it. CROSS JOIN: SQLite then looks for each run's range in the key of the waits.
SELECT waits.context_id AS run_id, waits.context_id AS context_id, waits.call_id AS call_id, waits.root AS root,
    waits.kind AS kind, waits.agent AS agent, waits.tool AS tool, waits.hash AS hash, waits.created_at AS created_at,
    waits.expires_at AS expires_at, waits.summary AS summary, waits.amount AS amount
FROM waits
WHERE waits.context_id IN (:context_ids)
UNION ALL
SELECT runs.context_id AS run_id, waits.context_id AS context_id, waits.call_id AS call_id, waits.root AS root,
    waits.kind AS kind, waits.agent AS agent, waits.tool AS tool, waits.hash AS hash, waits.created_at AS created_at,
    waits.expires_at AS expires_at, waits.summary AS summary, waits.amount AS amount
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
INSERT INTO waits (
    context_id, call_id, root, seq, kind, agent, tool, hash, created_at, expires_at, summary, amount
)
VALUES (
    :context_id, :call_id, :root, :seq, :kind, :agent, :tool, :hash, :created_at, :expires_at, :summary, :amount
)
ON CONFLICT (context_id, call_id) DO NOTHING
RETURNING call_id

-- name: remove_wait
DELETE FROM waits
WHERE context_id = :context_id AND call_id = :call_id
    AND hash = :hash -- if hash
