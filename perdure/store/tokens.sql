-- API tokens, and logins of the console.

-- name: insert_token
INSERT INTO api_tokens (
    id, hash, name, role, created_at, created_by, tenants, agents, sessions, expires_at, revoked_at, last_used_at
)
VALUES (
    :id, :hash, :name, :role, :created_at, :created_by, :tenants, :agents, :sessions, :expires_at, :revoked_at,
    :last_used_at
)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: get_token
SELECT id, hash, name, role, created_at, created_by, tenants, agents, sessions, expires_at,
    revoked_at, last_used_at FROM api_tokens
WHERE id = :id

-- name: list_tokens
-- The newest first.
SELECT id, hash, name, role, created_at, created_by, tenants, agents, sessions, expires_at,
    revoked_at, last_used_at FROM api_tokens
WHERE true
    AND revoked_at IS NULL -- if not revoked
    AND (created_at, id) < (:created_at, :last_id) -- if last_id
ORDER BY created_at DESC, id DESC
LIMIT :limit

-- name: revoke_token
UPDATE api_tokens SET revoked_at = coalesce(revoked_at, :at)
WHERE id = :id
RETURNING id, hash, name, role, created_at, created_by, tenants, agents, sessions, expires_at, revoked_at,
    last_used_at

-- name: record_token_use
UPDATE api_tokens SET last_used_at = :at
WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= :unless_since)
RETURNING id

-- name: insert_login
INSERT INTO console_logins (id, hash, token_id, created_at, expires_at)
VALUES (:id, :hash, :token_id, :created_at, :expires_at)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: get_login
SELECT id, hash, token_id, created_at, expires_at FROM console_logins
WHERE id = :id

-- name: delete_login
DELETE FROM console_logins
WHERE id = :id
RETURNING id

-- name: delete_expired_logins
DELETE FROM console_logins
WHERE expires_at <= :now
RETURNING id
