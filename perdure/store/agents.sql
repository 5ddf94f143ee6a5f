-- The definitions of agents. PostgreSQL writes them by one statement, see postgres.sql.

-- name: write_agent
INSERT INTO agents (hash, name, body, created_at, seen_at)
VALUES (:hash, :name, :body, :created_at, :seen_at)
ON CONFLICT (hash) DO UPDATE SET seen_at = excluded.seen_at

-- name: list_agent_names
SELECT DISTINCT name FROM agents ORDER BY name

-- name: list_agents
SELECT hash, name, body, created_at, seen_at FROM agents
WHERE name = coalesce(:name, name)
ORDER BY name, seen_at DESC, hash
