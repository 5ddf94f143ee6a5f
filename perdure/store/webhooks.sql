-- Subscriptions of webhooks, and the log of their deliveries.

-- name: insert_webhook
INSERT INTO webhooks (
    id, url, events, agent, tenant, session, enabled, disabled_reason, failing_since, secrets, key_id, created_by,
    created_at, updated_at, allowed
)
VALUES (
    :id, :url, :events, :agent, :tenant, :session, :enabled, :disabled_reason, :failing_since, :secrets, :key_id,
    :created_by, :created_at, :updated_at, :allowed
)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: update_webhook
UPDATE webhooks SET url = :url, events = :events, agent = :agent, tenant = :tenant, session = :session,
    enabled = :enabled, disabled_reason = :disabled_reason, failing_since = :failing_since, secrets = :secrets,
    key_id = :key_id, created_by = :created_by, updated_at = :updated_at, allowed = :allowed
WHERE id = :id AND updated_at = :before
RETURNING id

-- name: get_webhook
SELECT id, url, events, agent, tenant, session, enabled, disabled_reason, failing_since, secrets,
    key_id, created_by, created_at, updated_at, allowed FROM webhooks
WHERE id = :id

-- name: list_webhooks
-- The oldest first.
SELECT id, url, events, agent, tenant, session, enabled, disabled_reason, failing_since, secrets,
    key_id, created_by, created_at, updated_at, allowed FROM webhooks
WHERE true
    AND enabled = :enabled -- if enabled
    AND (created_at, id) > (:last_at, :last_id) -- if last_at
ORDER BY created_at, id
LIMIT :limit

-- name: delete_webhook
DELETE FROM webhooks
WHERE id = :id
RETURNING id

-- name: delete_deliveries
DELETE FROM webhook_deliveries
WHERE webhook_id = :id

-- name: disable_webhook
UPDATE webhooks SET enabled = 0, disabled_reason = :reason, updated_at = :now
WHERE id = :id AND enabled = 1
RETURNING id

-- name: note_failure
UPDATE webhooks SET failing_since = coalesce(failing_since, :now)
WHERE id = :id
RETURNING failing_since

-- name: note_success
UPDATE webhooks SET failing_since = NULL
WHERE id = :id AND failing_since IS NOT NULL

-- name: get_failing_since
SELECT failing_since FROM webhooks
WHERE id = :id

-- name: insert_delivery
INSERT INTO webhook_deliveries (
    id, webhook_id, message_id, type, stream, seq, context_id, url, attempt, outcome, status, error, answer,
    milliseconds, next_at, created_at
)
VALUES (
    :id, :webhook_id, :message_id, :type, :stream, :seq, :context_id, :url, :attempt, :outcome, :status, :error,
    :answer, :milliseconds, :next_at, :created_at
)
ON CONFLICT DO NOTHING

-- name: get_delivery
SELECT id, webhook_id, message_id, type, stream, seq, context_id, url, attempt, outcome,
    status, error, answer, milliseconds, next_at, created_at FROM webhook_deliveries
WHERE id = :id

-- name: list_deliveries
-- The newest first; `latest`: of each message its last.
SELECT id, webhook_id, message_id, type, stream, seq, context_id, url, attempt, outcome,
    status, error, answer, milliseconds, next_at, created_at FROM webhook_deliveries
WHERE webhook_id = :webhook_id
    AND NOT EXISTS ( -- if latest
        SELECT 1 FROM webhook_deliveries AS later WHERE later.message_id = webhook_deliveries.message_id -- if latest
            AND (later.created_at, later.id) > (webhook_deliveries.created_at, webhook_deliveries.id) -- if latest
    ) -- if latest
    AND outcome = 'succeeded' -- if state = delivered
    AND outcome <> 'succeeded' AND next_at IS NOT NULL -- if state = retrying
    AND outcome <> 'succeeded' AND next_at IS NULL -- if state = failed
    AND message_id = :message_id -- if message_id
    AND (created_at, id) < (:last_at, :last_id) -- if last_at
ORDER BY created_at DESC, id DESC
LIMIT :limit

-- name: delete_old_deliveries
DELETE FROM webhook_deliveries
WHERE id IN (SELECT id FROM webhook_deliveries WHERE created_at < :before ORDER BY created_at LIMIT :limit)
RETURNING id

-- name: find_outbox_target
SELECT 1 FROM outbox
WHERE target = :target
LIMIT 1
