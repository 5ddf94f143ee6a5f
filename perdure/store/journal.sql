-- Claims of calls and their outcomes, on SQLite. PostgreSQL claims and commits by the functions perdure_claim_0001 and
-- perdure_commit_0001 (migrations/versions/0001_postgresql.sql), which do the same in one round trip; postgres.py calls
-- them.

-- name: claim
-- The update of an existing row changes nothing and locks it, so that two retries do not take over one claim.
INSERT INTO journal (key, kind, owner, starts, outcome, claimed_at, done_at, key_id, context_id)
VALUES (:key, :kind, :owner, :starts, :outcome, :claimed_at, :done_at, :key_id, :context_id)
ON CONFLICT (key) DO UPDATE SET key = excluded.key
RETURNING owner, starts, outcome

-- name: take_over_claim
UPDATE journal SET owner = :owner, starts = :starts, claimed_at = :now
WHERE key = :key

-- name: release_claim
DELETE FROM journal
WHERE key = :key AND owner = :owner AND starts = 1 AND outcome IS NULL
RETURNING key

-- name: record_outcome
INSERT INTO journal (key, kind, owner, starts, outcome, claimed_at, done_at, key_id, context_id)
VALUES (:key, :kind, :owner, :starts, :outcome, :claimed_at, :done_at, :key_id, :context_id)
ON CONFLICT (key) DO UPDATE SET kind = excluded.kind, outcome = excluded.outcome, done_at = excluded.done_at,
    key_id = excluded.key_id
WHERE journal.outcome IS NULL

-- name: find_outcomes
SELECT key, outcome FROM journal
WHERE key IN (:keys)
