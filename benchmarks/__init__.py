"""What perdure costs beside bare Temporal: ``python -m benchmarks`` (``make bench``).

The contestants run the same conversation: N times a model call that asks for one tool call, and the tool; then a
last model call. They share one dev server (as ``perdure.embedded`` starts it), one fake model (``mock_model.py``, a
process of its own, which answers at once) and all options: timeouts, heartbeats, retry policy, worker settings,
eager activities. Each has a worker process of its own, whose CPU time is what is reported. Rounds interleave the
contestants, and a ratio is the median of the ratios within the rounds.

=============== ==================================================================================================
floor2          Bare Temporal, nothing kept: a workflow with two activities an iteration. One sends a request of one
                short message through the official openai SDK, not streamed, and returns the tool's arguments; one
                runs the tool. ``sandboxed=False``. This is the least that a durable agent with tools as activities
                can do; it has no conversation, no journal, no stream. ``floor2-sandboxed`` leaves the sandbox on.
floor1          The same with model call and tool in one activity: a crash repeats both.
perdure         An ``Agent`` on ``openai:`` with its tool as an activity: the whole conversation is sent with every
                call and streamed, every effect journaled, the transcript kept in SQLite with its syncs.
perdure-inline  The same agent with ``@tool(inline=True)``.
perdure-pg      The last two with their store on a PostgreSQL server of the bench's own, on loopback, which syncs every
(and inline-pg) commit; where the packages of requirements/postgres.txt are installed (``make bench`` does).
pydantic-ai     Other frameworks on Temporal, as their documentation writes an agent with a tool, with timeouts and
openai-agents   heartbeats of their own (``benchmarks.peers``), where ``make bench PEERS=1`` has installed them: in the
                measures single, concurrent, history and recovery.
=============== ==================================================================================================
"""
