-- What the store is: its id, and the version of its schema.

-- name: insert_store_id
INSERT INTO meta (id, store_id, created_at, usable_from)
VALUES (:id, :store_id, :created_at, :usable_from)
ON CONFLICT DO NOTHING

-- name: read_store_id
SELECT store_id FROM meta

-- name: read_version
SELECT version_num, usable_from FROM perdure_version LEFT JOIN meta ON true

-- name: read_identity
SELECT version_num, usable_from, store_id, created_at FROM perdure_version LEFT JOIN meta ON true

-- name: set_usable_from
UPDATE meta SET usable_from = :usable_from
