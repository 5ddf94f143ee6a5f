-- Statements of SQLite alone.

-- name: list_tables
-- Without SQLite's own.
SELECT name FROM sqlite_master
WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'
ORDER BY name

-- name: count_tables
SELECT count(*) FROM sqlite_master
