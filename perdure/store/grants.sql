-- OAuth grants of MCP servers, and sign-ins that have begun.

-- name: get_grant
SELECT tenant, user_id, server, version, sealed, key_id, owner, leased_until, created_at, created_by,
    updated_at FROM grants
WHERE tenant = :tenant AND user_id = :user_id AND server = :server

-- name: list_grants
SELECT tenant, user_id, server, version, sealed, key_id, owner, leased_until, created_at, created_by,
    updated_at FROM grants
WHERE (tenant, user_id, server) > (:tenant, :user_id, :server)
ORDER BY tenant, user_id, server
LIMIT :limit

-- name: replace_grant
INSERT INTO grants (
    tenant, user_id, server, version, sealed, key_id, owner, leased_until, created_at, created_by, updated_at
)
VALUES (
    :tenant, :user_id, :server, :version, :sealed, :key_id, :owner, :leased_until, :created_at, :created_by,
    :updated_at
)
ON CONFLICT (tenant, user_id, server) DO UPDATE SET version = grants.version + 1, sealed = excluded.sealed,
    key_id = excluded.key_id, owner = '', leased_until = '', created_by = excluded.created_by,
    updated_at = excluded.updated_at
RETURNING version

-- name: insert_grant
INSERT INTO grants (
    tenant, user_id, server, version, sealed, key_id, owner, leased_until, created_at, created_by, updated_at
)
VALUES (
    :tenant, :user_id, :server, :version, :sealed, :key_id, :owner, :leased_until, :created_at, :created_by,
    :updated_at
)
ON CONFLICT (tenant, user_id, server) DO NOTHING
RETURNING version

-- name: lease_grant
UPDATE grants SET owner = :owner, leased_until = :until
WHERE tenant = :tenant AND user_id = :user_id AND server = :server AND version = :version
    AND (owner = '' OR leased_until <= :now)
RETURNING version

-- name: update_grant
UPDATE grants SET version = version + 1, sealed = :sealed, key_id = :key_id, owner = '', leased_until = '',
    updated_at = :now
WHERE tenant = :tenant AND user_id = :user_id AND server = :server AND version = :version
RETURNING version

-- name: release_grant
UPDATE grants SET owner = '', leased_until = ''
WHERE tenant = :tenant AND user_id = :user_id AND server = :server AND owner = :owner
RETURNING version

-- name: delete_grant
DELETE FROM grants
WHERE tenant = :tenant AND user_id = :user_id AND server = :server
RETURNING version

-- name: insert_sign_in
INSERT INTO sign_ins (id, sealed, expires_at)
VALUES (:id, :sealed, :expires_at)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: take_sign_in
DELETE FROM sign_ins
WHERE id = :id
RETURNING id, sealed, expires_at

-- name: delete_expired_sign_ins
DELETE FROM sign_ins
WHERE expires_at <= :now
RETURNING id
