-- Statements of SQLite alone.

-- name: list_tables
-- Without SQLite's own.
SELECT name FROM sqlite_master
WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'
ORDER BY name

-- name: count_tables
SELECT count(*) FROM sqlite_master

-- name: write_nudge
INSERT INTO nudges (run_id, nudged_at) VALUES (:run_id, :now)
ON CONFLICT (run_id) DO UPDATE SET nudged_at = excluded.nudged_at

-- name: delete_old_nudges
DELETE FROM nudges WHERE nudged_at < :since

-- name: list_nudges
SELECT run_id, nudged_at FROM nudges WHERE nudged_at >= :since
