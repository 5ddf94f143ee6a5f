-- The audit trail. A row has the labels of its subject's run, where the store has that.

-- name: record_audit
INSERT INTO audit (
    id, at, by, auth, origin, subject, verb, call_id, detail, refused, count, last_at, agent, tenant, user_id
)
VALUES (
    :id, :at, :by, :auth, :origin, :subject, :verb, :call_id, :detail, :refused, :count, :last_at,
    coalesce((SELECT agent FROM runs WHERE context_id = :subject), :agent),
    coalesce((SELECT tenant FROM runs WHERE context_id = :subject), :tenant),
    coalesce((SELECT user_id FROM runs WHERE context_id = :subject), :user_id)
)
ON CONFLICT DO NOTHING

-- name: count_refused
INSERT INTO audit (
    id, at, by, auth, origin, subject, verb, call_id, detail, refused, count, last_at, agent, tenant, user_id
)
VALUES (
    :id, :at, :by, :auth, :origin, :subject, :verb, :call_id, :detail, :refused, :count, :last_at,
    coalesce((SELECT agent FROM runs WHERE context_id = :subject), :agent),
    coalesce((SELECT tenant FROM runs WHERE context_id = :subject), :tenant),
    coalesce((SELECT user_id FROM runs WHERE context_id = :subject), :user_id)
)
ON CONFLICT (id) DO UPDATE SET refused = excluded.refused, count = audit.count + 1, last_at = excluded.last_at

-- name: delete_audit
DELETE FROM audit
WHERE id = :id
RETURNING id

-- name: list_audit
-- The newest first.
SELECT id, at, by, auth, origin, subject, verb, call_id, detail, refused, count, last_at, agent, tenant,
    user_id FROM audit
WHERE at >= :since
    AND subject = :subject -- if subject
    AND by = :by -- if by
    AND verb = :verb -- if verb
    AND substr(verb, 1, length(:prefix)) = :prefix -- if prefix
    AND at < :until -- if until
    AND refused IS NOT NULL -- if refused
    AND tenant IN (:tenants) -- if tenants
    AND (at, id) < (:last_at, :last_id) -- if last_at
ORDER BY at DESC, id DESC
LIMIT :limit
