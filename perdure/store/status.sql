-- What operators are shown of a store.

-- name: read_run_times
-- One by one: SQLite reads the whole index for both at once.
SELECT (SELECT min(created_at) FROM runs), (SELECT max(created_at) FROM runs)
