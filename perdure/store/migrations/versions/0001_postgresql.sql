-- The writing operations on PostgreSQL: one call, so one round trip and one transaction, for each.
--
-- Functions, and not one statement with data-modifying CTEs: all parts of one statement read the snapshot of its
-- beginning. A writer that has waited for the lock of a feed would not see the deltas that were committed meanwhile,
-- and would neither retract nor replace them. In a VOLATILE function each statement sees what is committed by then.
--
-- The number in a name is that of its first schema. A later schema adds functions under other names and keeps these
-- while old workers run. The operations are those of journal.py and event_log.py; the contract suite compares them.
--
-- Locks are taken in one order by all: blobs, nodes, journal, run, turn, messages, usage, memory (each sorted by the
-- caller), own feed, the root's feed, failing calls, counts of failed attempts, references. SQLSTATEs of these functions:
-- PD001 memory was changed, PD002 open deltas (see below), PD003 the parent of a node is missing, PD004 the id belongs to
-- a deleted run, or to that of another tenant, user or root.


-- Appends a batch to the events of a conversation; see perdure.ports.EventBatch.
--
-- p_marked: the index of an event without a stored key; it gets p_write as its key, so that a batch whose answer was
-- lost is recognised when it is appended again (p_again), and refused by the unique index if both are on their way.
-- p_lost_*: the retraction to write if the first open delta is p_lost_seq. Its body is built by the caller, from a row
-- that only the database knows: PD002 names the stream and the number, and the caller calls again with it.
-- p_waits: what the events change in the waits, see event_log.py: the token of the writer's activity, the agent, and for
-- each change ten values from the event's index on. p_failures: what they change in the failing calls, see
-- ports/failures.py: the token of the writer's activity, the agent, tenant and user, after how many attempts a run is held
-- up, and for each change the eleven values of a FailureChange. p_outbox: index and target of each row. p_key_id: that of
-- the key that the bodies are encrypted with.
CREATE FUNCTION perdure_append_0001(
    p_now text, p_context_id text, p_token text, p_advances boolean, p_recorded boolean, p_root text, p_path text,
    p_types text[], p_task_ids text[], p_keys text[], p_bodies bytea[],
    p_waits text[], p_failures text[], p_outbox text[], p_key_id text,
    p_marked integer, p_write text, p_again boolean, p_lost_seq bigint, p_lost_task_id text, p_lost_body bytea,
    OUT written boolean, OUT stream text, OUT last_seq bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_feed feeds;
    v_new feeds;
    v_child text;
    v_first_seq bigint;
    v_key text;
    v_spans text;
    v_shift integer := 0;
    v_wait integer := 3;
    v_failure integer := 6;
    v_held_up_at text;
    v_is_late boolean;
    v_has_ended boolean := false;
    v_tail text := ', ' || p_path || ']]';
BEGIN
    SELECT * INTO v_feed FROM feeds WHERE context_id = p_context_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO feeds (context_id, seq, token, open, first_delta, root, path, failing)
        VALUES (p_context_id, 0, '', 0, 0, p_root, p_path, 0)
        ON CONFLICT (context_id) DO UPDATE SET seq = feeds.seq RETURNING * INTO v_feed;
        IF EXISTS (SELECT FROM deleted_runs WHERE context_id = p_context_id) THEN
            RAISE EXCEPTION 'the run was deleted' USING ERRCODE = 'PD004';
        END IF;
    END IF;
    IF p_root IS NOT NULL AND p_root IS DISTINCT FROM v_feed.root THEN
        RAISE EXCEPTION 'the run is in the stream of another one' USING ERRCODE = 'PD004';
    END IF;
    written := true;
    stream := coalesce(v_feed.root, p_context_id);
    last_seq := v_feed.seq;
    IF p_again AND EXISTS (SELECT FROM events WHERE context_id = stream AND key = p_write) THEN
        RETURN;
    END IF;
    IF p_token <> '' AND p_token COLLATE "C" < v_feed.token COLLATE "C" AND NOT p_recorded THEN
        written := false;
        RETURN;
    END IF;
    IF v_feed.root IS NOT NULL THEN
        v_child := p_context_id;
        SELECT seq INTO last_seq FROM feeds WHERE context_id = stream FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            INSERT INTO feeds (context_id, seq, token, open, first_delta, failing) VALUES (stream, 0, '', 0, 0, 0)
            ON CONFLICT (context_id) DO UPDATE SET seq = feeds.seq RETURNING seq INTO last_seq;
            IF EXISTS (SELECT FROM deleted_runs WHERE context_id = stream) THEN
                RAISE EXCEPTION 'the run above was deleted' USING ERRCODE = 'PD004';
            END IF;
        END IF;
    END IF;
    v_first_seq := last_seq;
    v_new := v_feed;

    -- The paths are the JSON of event_log.PathHistory: '[steps]', or '[[0, [steps]], [number, [steps]]]'.
    IF p_path IS NOT NULL AND p_root = v_feed.root AND p_path <> v_feed.path
       AND right(v_feed.path, length(v_tail)) <> v_tail THEN
        v_new.path := CASE WHEN v_feed.path LIKE '[[%' THEN left(v_feed.path, -1)
                           ELSE '[[0, ' || v_feed.path || ']' END
                      || ', [' || last_seq + 1 || v_tail;
    END IF;

    IF p_waits[1] <> '' AND p_waits[1] COLLATE "C" < v_feed.token COLLATE "C" THEN
        p_waits := '{}';
    END IF;
    v_is_late := p_failures[1] <> '' AND p_failures[1] COLLATE "C" < v_feed.token COLLATE "C";
    IF p_token COLLATE "C" > v_feed.token COLLATE "C" THEN
        IF v_feed.open <> 0 AND NOT (p_recorded AND p_types && '{model.completed,model.retracted}') THEN
            IF p_lost_seq IS DISTINCT FROM v_feed.open THEN
                RAISE EXCEPTION 'deltas of a lost worker are open'
                    USING ERRCODE = 'PD002', DETAIL = v_feed.open || ' ' || stream;
            END IF;
            p_types := 'model.retracted'::text || p_types;
            p_task_ids := p_lost_task_id || p_task_ids;
            p_keys := NULL::text || p_keys;
            p_bodies := p_lost_body || p_bodies;
            p_marked := p_marked + 1;
            v_shift := 1;
        END IF;
        IF p_advances THEN
            v_new.token := p_token;
        END IF;
    END IF;

    FOR i IN 1 .. cardinality(p_types) LOOP
        v_key := coalesce(v_child || E'\n', '') || p_keys[i];
        CONTINUE WHEN v_key IS NOT NULL AND EXISTS (SELECT FROM events WHERE context_id = stream AND key = v_key);
        WHILE p_failures[v_failure]::integer < i - v_shift LOOP
            v_failure := v_failure + 11;
        END LOOP;
        IF p_failures[v_failure]::integer = i - v_shift AND p_failures[v_failure + 1] IN ('hold_up', 'recover') THEN
            v_held_up_at := NULL;
            IF v_new.failing <> 0 AND NOT v_is_late THEN
                IF p_failures[v_failure + 1] = 'hold_up' THEN
                    UPDATE failing_calls SET held_up_at = p_failures[v_failure + 8]
                    WHERE context_id = p_context_id AND call = p_failures[v_failure + 2]
                      AND attempts >= p_failures[5]::integer AND held_up_at IS NULL
                    RETURNING held_up_at INTO v_held_up_at;
                ELSE
                    DELETE FROM failing_calls WHERE context_id = p_context_id AND call = p_failures[v_failure + 2]
                    RETURNING held_up_at INTO v_held_up_at;
                    v_has_ended := true;
                END IF;
            END IF;
            CONTINUE WHEN v_held_up_at IS NULL;
        END IF;
        v_spans := NULL;
        IF p_types[i] = 'model.retracted' THEN
            CONTINUE WHEN v_new.open = 0;
            SELECT json_agg(json_build_array(first, last) ORDER BY first) INTO v_spans FROM (
                SELECT min(seq) AS first, max(seq) AS last FROM (
                    SELECT seq, seq - row_number() OVER (ORDER BY seq) AS span FROM events
                    WHERE context_id = stream AND seq >= v_new.open AND type = 'model.delta'
                      AND child IS NOT DISTINCT FROM v_child
                ) AS deltas GROUP BY span
            ) AS spans;
            v_new.open := 0;
            CONTINUE WHEN v_spans IS NULL;
        ELSIF p_types[i] = 'model.completed' THEN
            IF v_new.first_delta <> 0 THEN
                WITH deltas AS (
                    DELETE FROM events
                    WHERE context_id = stream AND seq >= v_new.first_delta AND type = 'model.delta'
                      AND child IS NOT DISTINCT FROM v_child
                    RETURNING seq
                )
                SELECT json_agg(json_build_array(first, last) ORDER BY first) INTO v_spans FROM (
                    SELECT min(seq) AS first, max(seq) AS last FROM (
                        SELECT seq, seq - row_number() OVER (ORDER BY seq) AS span FROM deltas
                    ) AS numbered GROUP BY span
                ) AS spans;
            END IF;
            v_new.open := 0;
            v_new.first_delta := 0;
        END IF;
        IF v_key IS NULL OR p_types[i] = 'model.delta' THEN
            v_key := CASE WHEN i = p_marked THEN p_write END;
        END IF;
        last_seq := last_seq + 1;
        INSERT INTO events (context_id, seq, task_id, type, key, body, spans, child, key_id)
        VALUES (stream, last_seq, p_task_ids[i], p_types[i], v_key, p_bodies[i], v_spans, v_child, p_key_id);
        WHILE p_waits[v_wait]::integer <= i - v_shift LOOP
            IF p_waits[v_wait]::integer < i - v_shift THEN
                NULL;  -- of an event that was not written
            ELSIF p_waits[v_wait + 2] IS NULL THEN
                DELETE FROM waits WHERE context_id = p_waits[v_wait + 1];
                IF v_new.failing <> 0 AND p_waits[v_wait + 1] = p_context_id THEN
                    DELETE FROM failing_calls WHERE context_id = p_context_id;
                    v_has_ended := true;
                END IF;
            ELSIF p_waits[v_wait + 3] IS NULL THEN
                DELETE FROM waits WHERE context_id = p_waits[v_wait + 1] AND call_id = p_waits[v_wait + 2];
                IF v_new.failing <> 0 AND p_waits[v_wait + 1] = p_context_id THEN
                    DELETE FROM failing_calls WHERE context_id = p_context_id AND call = p_waits[v_wait + 2];
                    v_has_ended := true;
                END IF;
            ELSE
                INSERT INTO waits (context_id, call_id, root, seq, kind, agent, tool, hash, created_at, expires_at,
                                   summary, amount)
                VALUES (p_waits[v_wait + 1], p_waits[v_wait + 2], stream, last_seq, p_waits[v_wait + 3], p_waits[2],
                        p_waits[v_wait + 4], p_waits[v_wait + 5], p_waits[v_wait + 6], p_waits[v_wait + 7],
                        p_waits[v_wait + 8], p_waits[v_wait + 9]::double precision)
                ON CONFLICT (context_id, call_id) DO UPDATE
                    SET root = excluded.root, seq = excluded.seq, kind = excluded.kind, agent = excluded.agent,
                        tool = excluded.tool, hash = excluded.hash, created_at = excluded.created_at,
                        expires_at = excluded.expires_at, summary = excluded.summary, amount = excluded.amount;
            END IF;
            v_wait := v_wait + 10;
        END LOOP;
        IF p_failures[v_failure]::integer = i - v_shift AND p_failures[v_failure + 1] IN ('fail', 'end', 'count') THEN
            INSERT INTO failed_attempts (key, hour, agent, tenant, user_id, kind, source, status, error_type, attempts,
                                         ended)
            VALUES (p_failures[v_failure + 10], left(p_failures[v_failure + 8], 13), p_failures[2], p_failures[3],
                    p_failures[4], p_failures[v_failure + 3], p_failures[v_failure + 4],
                    nullif(p_failures[v_failure + 5], '')::integer, p_failures[v_failure + 6], 1,
                    (p_failures[v_failure + 1] = 'end')::integer)
            ON CONFLICT (key) DO UPDATE SET attempts = failed_attempts.attempts + 1,
                                            ended = failed_attempts.ended + excluded.ended;
            IF p_failures[v_failure + 1] = 'fail' THEN
                INSERT INTO failing_calls (context_id, call, root, agent, tenant, user_id, kind, source, error_type,
                                           error, status, attempts, since, last_at, next_at)
                VALUES (p_context_id, p_failures[v_failure + 2], stream, p_failures[2], p_failures[3], p_failures[4],
                        p_failures[v_failure + 3], p_failures[v_failure + 4], p_failures[v_failure + 6],
                        p_failures[v_failure + 7], nullif(p_failures[v_failure + 5], '')::integer, 1,
                        p_failures[v_failure + 8], p_failures[v_failure + 8], p_failures[v_failure + 9])
                ON CONFLICT (context_id, call) DO UPDATE
                    SET root = excluded.root, agent = excluded.agent, kind = excluded.kind, source = excluded.source,
                        error_type = excluded.error_type, error = excluded.error, status = excluded.status,
                        attempts = failing_calls.attempts + 1, last_at = excluded.last_at, next_at = excluded.next_at;
                v_new.failing := 1;
            ELSIF p_failures[v_failure + 1] = 'end' AND v_new.failing <> 0 THEN
                DELETE FROM failing_calls WHERE context_id = p_context_id AND call = p_failures[v_failure + 2];
                v_has_ended := true;
            END IF;
        END IF;
        IF p_types[i] = 'model.started' AND v_new.failing <> 0 THEN  -- every call of a tool has a result
            DELETE FROM failing_calls WHERE context_id = p_context_id AND kind = 'tool';
            v_has_ended := true;
        END IF;
        IF p_outbox <> '{}' THEN
            INSERT INTO outbox (stream, seq, target, context_id, type, created_at, taken, owner, leased_until)
            SELECT perdure_append_0001.stream, last_seq, p_outbox[n + 1], p_context_id, p_types[i], p_now, 0, '', ''
            FROM generate_series(1, cardinality(p_outbox), 2) AS n WHERE p_outbox[n]::integer = i - v_shift - 1;
        END IF;
        IF p_types[i] = 'model.delta' THEN
            v_new.open := coalesce(nullif(v_new.open, 0), last_seq);
            v_new.first_delta := coalesce(nullif(v_new.first_delta, 0), last_seq);
        END IF;
    END LOOP;

    IF v_has_ended THEN
        v_new.failing := (EXISTS (SELECT FROM failing_calls WHERE context_id = p_context_id))::integer;
    END IF;
    IF v_feed.root IS NULL THEN
        v_new.seq := last_seq;
    ELSIF last_seq <> v_first_seq THEN
        UPDATE feeds SET seq = last_seq WHERE context_id = stream;
    END IF;
    IF v_new IS DISTINCT FROM v_feed THEN
        UPDATE feeds SET seq = v_new.seq, token = v_new.token, open = v_new.open, first_delta = v_new.first_delta,
                         path = v_new.path, failing = v_new.failing
        WHERE context_id = p_context_id;
    END IF;
END $$;


-- Records the intent to act; see perdure.ports.Journal.claim. p_context_id is NULL without events.
CREATE FUNCTION perdure_claim_0001(
    p_key text, p_owner text, p_take_over boolean, p_now text,
    p_context_id text, p_token text, p_advances boolean, p_root text, p_path text,
    p_types text[], p_task_ids text[], p_keys text[], p_bodies bytea[],
    p_waits text[], p_failures text[], p_outbox text[], p_key_id text,
    p_marked integer, p_write text, p_again boolean, p_lost_seq bigint, p_lost_task_id text, p_lost_body bytea,
    OUT state text, OUT recorded bytea, OUT starts_counted integer, OUT begun_by text,
    OUT stream text, OUT last_seq bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_owner text := p_owner;
BEGIN
    state := 'new';
    starts_counted := 1;
    INSERT INTO journal (key, owner, starts, claimed_at, context_id) VALUES (p_key, p_owner, 1, p_now, p_context_id)
    ON CONFLICT (key) DO NOTHING;
    IF NOT FOUND THEN
        SELECT owner, starts, outcome INTO v_owner, starts_counted, recorded FROM journal WHERE key = p_key FOR UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the journal entry was deleted meanwhile' USING ERRCODE = 'serialization_failure';
        ELSIF recorded IS NOT NULL THEN
            state := 'done';
            RETURN;
        ELSIF v_owner IS DISTINCT FROM p_owner THEN
            begun_by := v_owner;
            IF NOT p_take_over THEN
                state := 'begun';
                RETURN;
            END IF;
            starts_counted := starts_counted + 1;
            UPDATE journal SET owner = p_owner, starts = starts_counted, claimed_at = p_now WHERE key = p_key;
        END IF;
    END IF;
    IF p_context_id IS NOT NULL THEN
        SELECT appended.stream, appended.last_seq INTO stream, last_seq FROM perdure_append_0001(
            p_now, p_context_id, p_token, p_advances, false, p_root, p_path, p_types, p_task_ids, p_keys, p_bodies,
            p_waits, p_failures, p_outbox, p_key_id,
            p_marked, p_write, p_again, p_lost_seq, p_lost_task_id, p_lost_body) AS appended;
    END IF;
END $$;


-- Writes a perdure.ports.Commit. Returns in recorded the outcome of an earlier writer, if there is one: then nothing but
-- nodes and blobs is written. Without a run, turn, usage or batch its context_id is NULL.
CREATE FUNCTION perdure_commit_0001(
    p_now text, p_blob_hashes text[], p_blobs bytea[], p_node_hashes text[], p_node_parents text[], p_nodes bytea[],
    p_key text, p_kind text, p_outcome bytea,
    p_run_id text, p_agent text, p_scope text, p_run_head text, p_run_status text, p_iterations integer,
    p_run_result bytea, p_run_asked_at text, p_run_tenant text, p_run_user_id text,
    p_first_message text, p_error_type text, p_error text,
    p_turn_context_id text, p_task_id text, p_turn_status text, p_turn_head text, p_turn_result bytea,
    p_turn_asked_at text, p_message_ids text[],
    p_usage_context_id text, p_usage_agent text, p_purpose text, p_provider text, p_model text, p_usage_status text,
    p_requests integer, p_input_tokens bigint, p_output_tokens bigint, p_cached_tokens bigint,
    p_cache_write_tokens bigint, p_reasoning_tokens bigint, p_cost_usd double precision, p_milliseconds bigint,
    p_usage_task_id text, p_usage_root text, p_usage_tenant text, p_usage_user_id text,
    p_namespaces text[], p_names text[], p_values bytea[], p_checked boolean[], p_before bytea[],
    p_context_id text, p_token text, p_advances boolean, p_root text, p_path text,
    p_types text[], p_task_ids text[], p_keys text[], p_bodies bytea[],
    p_waits text[], p_failures text[], p_outbox text[], p_key_id text,
    p_marked integer, p_write text, p_again boolean, p_lost_seq bigint, p_lost_task_id text, p_lost_body bytea,
    OUT recorded bytea, OUT stream text, OUT last_seq bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_today text := left(p_now, 10);
    v_parent text;
BEGIN
    INSERT INTO blobs (hash, body, used_on, key_id)
    SELECT hash, body, v_today, p_key_id FROM unnest(p_blob_hashes, p_blobs) AS given (hash, body)
    ON CONFLICT (hash) DO UPDATE SET used_on = excluded.used_on WHERE blobs.used_on < excluded.used_on;
    INSERT INTO nodes (hash, parent, body, used_on, key_id)
    SELECT hash, parent, body, v_today, p_key_id FROM unnest(p_node_hashes, p_node_parents, p_nodes) AS given (hash, parent, body)
    ON CONFLICT (hash) DO UPDATE SET used_on = excluded.used_on WHERE nodes.used_on < excluded.used_on;
    -- What a commit builds on is used today, so no collector takes it: one that is about to holds its lock.
    UPDATE nodes SET used_on = v_today
    WHERE hash = ANY(p_node_parents || p_run_head || p_turn_head) AND used_on < v_today;
    SELECT given.name INTO v_parent FROM unnest(p_node_parents) AS given (name)
    WHERE given.name IS NOT NULL AND NOT EXISTS (SELECT FROM nodes WHERE nodes.hash = given.name) LIMIT 1;
    IF FOUND AND p_run_id IS NULL THEN  -- a run must be able to end on a corrupt transcript
        RAISE EXCEPTION 'a parent is missing' USING ERRCODE = 'PD003', DETAIL = v_parent;
    END IF;
    IF p_key IS NOT NULL THEN
        INSERT INTO journal (key, kind, starts, outcome, done_at, key_id, context_id)
        VALUES (p_key, p_kind, 0, p_outcome, p_now, p_key_id, coalesce(p_context_id, p_run_id))
        ON CONFLICT (key) DO UPDATE
            SET kind = excluded.kind, outcome = excluded.outcome, done_at = excluded.done_at,
                key_id = excluded.key_id
            WHERE journal.outcome IS NULL;
        IF NOT FOUND THEN
            SELECT outcome INTO recorded FROM journal WHERE key = p_key;
            RETURN;
        END IF;
    END IF;
    IF p_run_id IS NOT NULL THEN
        INSERT INTO runs (context_id, agent, scope, head, status, iterations, result, asked_at, created_at, updated_at,
                          tenant, user_id, key_id, first_message, error_type, error)
        VALUES (p_run_id, p_agent, p_scope, p_run_head, p_run_status, p_iterations, p_run_result, p_run_asked_at,
                p_now, p_now, p_run_tenant, p_run_user_id, p_key_id, p_first_message, p_error_type, p_error)
        ON CONFLICT (context_id) DO UPDATE
            SET agent = excluded.agent, scope = excluded.scope, head = excluded.head, status = excluded.status,
                iterations = excluded.iterations, result = excluded.result, asked_at = excluded.asked_at,
                updated_at = excluded.updated_at, key_id = excluded.key_id,
                first_message = COALESCE(runs.first_message, excluded.first_message),
                error_type = excluded.error_type, error = excluded.error
            WHERE excluded.asked_at >= runs.asked_at AND runs.tenant IS NOT DISTINCT FROM excluded.tenant
                AND runs.user_id IS NOT DISTINCT FROM excluded.user_id;
        IF NOT FOUND AND EXISTS (
            SELECT FROM runs WHERE context_id = p_run_id
            AND (tenant IS DISTINCT FROM p_run_tenant OR user_id IS DISTINCT FROM p_run_user_id)
        ) THEN
            RAISE EXCEPTION 'the row is of the run of another tenant or user' USING ERRCODE = 'PD004';
        END IF;
    END IF;
    IF p_turn_context_id IS NOT NULL THEN
        INSERT INTO turns (context_id, task_id, status, head, result, asked_at, created_at, updated_at, key_id)
        VALUES (p_turn_context_id, p_task_id, p_turn_status, p_turn_head, p_turn_result, p_turn_asked_at, p_now, p_now,
                p_key_id)
        ON CONFLICT (context_id, task_id) DO UPDATE
            SET status = excluded.status, head = excluded.head, result = excluded.result, asked_at = excluded.asked_at,
                updated_at = excluded.updated_at, key_id = excluded.key_id
            WHERE excluded.asked_at >= turns.asked_at;
        IF FOUND AND p_message_ids <> '{}' THEN
            INSERT INTO sent (context_id, message_id, task_id)
            SELECT p_turn_context_id, message_id, p_task_id FROM unnest(p_message_ids) AS message_id
            ON CONFLICT (context_id, message_id) DO NOTHING;
        END IF;
    END IF;
    IF p_usage_context_id IS NOT NULL AND p_key IS NOT NULL THEN
        INSERT INTO usage (context_id, agent, purpose, provider, model, status, requests, input_tokens, output_tokens,
                           cached_tokens, cache_write_tokens, reasoning_tokens, cost_usd, milliseconds, task_id, root,
                           tenant, user_id, key, created_at)
        VALUES (p_usage_context_id, p_usage_agent, p_purpose, p_provider, p_model, p_usage_status, p_requests,
                p_input_tokens, p_output_tokens, p_cached_tokens, p_cache_write_tokens, p_reasoning_tokens, p_cost_usd,
                p_milliseconds, p_usage_task_id, p_usage_root, p_usage_tenant, p_usage_user_id, p_key, p_now)
        ON CONFLICT (key) DO NOTHING;
    END IF;
    FOR i IN 1 .. cardinality(p_names) LOOP
        IF p_checked[i] THEN
            IF p_before[i] IS NULL THEN
                INSERT INTO memory (namespace, key, value, updated_at) VALUES (p_namespaces[i], p_names[i], '', p_now)
                ON CONFLICT (namespace, key) DO NOTHING;
            ELSE
                PERFORM FROM memory WHERE namespace = p_namespaces[i] AND key = p_names[i] AND value = p_before[i]
                FOR UPDATE;
            END IF;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'the memory was changed' USING ERRCODE = 'PD001', DETAIL = i;
            END IF;
        END IF;
        IF p_values[i] IS NULL THEN
            DELETE FROM memory WHERE namespace = p_namespaces[i] AND key = p_names[i];
        ELSE
            INSERT INTO memory (namespace, key, value, updated_at, key_id)
            VALUES (p_namespaces[i], p_names[i], p_values[i], p_now, p_key_id)
            ON CONFLICT (namespace, key) DO UPDATE
                SET value = excluded.value, updated_at = excluded.updated_at, key_id = excluded.key_id;
        END IF;
    END LOOP;
    IF p_context_id IS NOT NULL THEN
        SELECT appended.stream, appended.last_seq INTO stream, last_seq FROM perdure_append_0001(
            p_now, p_context_id, p_token, p_advances, true, p_root, p_path, p_types, p_task_ids, p_keys, p_bodies,
            p_waits, p_failures, p_outbox, p_key_id,
            p_marked, p_write, p_again, p_lost_seq, p_lost_task_id, p_lost_body) AS appended;
    END IF;
END $$;


-- Renews what a write refers to, before it: a collector that is about to delete it holds its lock. Returns p_now.
CREATE FUNCTION perdure_renew_0001(p_now text, p_targets text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_today text := left(p_now, 10);
BEGIN
    UPDATE blobs SET used_on = v_today WHERE hash = ANY(p_targets) AND used_on < v_today;
    UPDATE nodes SET used_on = v_today WHERE hash = ANY(p_targets) AND used_on < v_today;
    RETURN p_now;
END $$;


-- Notes what nodes and runs refer to, behind the write of them; see store/retention.py. The arrays have one entry for
-- each reference. A target that does not exist is left out.
CREATE FUNCTION perdure_refer_0001(p_targets text[], p_nodes text[], p_context_ids text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO node_references (target, node)
    SELECT given.target, given.node FROM unnest(p_targets, p_nodes) AS given (target, node)
    WHERE given.node IS NOT NULL
      AND (EXISTS (SELECT FROM blobs WHERE blobs.hash = given.target)
           OR EXISTS (SELECT FROM nodes WHERE nodes.hash = given.target))
    ON CONFLICT DO NOTHING;
    INSERT INTO run_references (target, context_id)
    SELECT given.target, given.context_id FROM unnest(p_targets, p_context_ids) AS given (target, context_id)
    WHERE given.context_id IS NOT NULL AND EXISTS (SELECT FROM blobs WHERE blobs.hash = given.target)
    ON CONFLICT DO NOTHING;
END $$;
