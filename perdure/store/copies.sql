-- The mark of a copy that is not complete: no worker opens the store. Statements of all tables are built, see
-- sqlite_copy.py and postgres_copy.py.

-- name: read_identity
SELECT store_id, created_at, usable_from, version_num FROM perdure_version CROSS JOIN meta

-- name: begin_copy
UPDATE meta SET store_id = :store_id, created_at = :created_at, usable_from = :unfinished

-- name: find_unfinished (sqlite)
SELECT 1 FROM meta
WHERE usable_from = :unfinished

-- name: find_unfinished (postgresql)
SELECT 1 FROM meta
WHERE usable_from = :unfinished
FOR UPDATE
