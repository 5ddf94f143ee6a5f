"""How perdure's clients start workflows."""

from __future__ import annotations

from datetime import timedelta

TASK_TIMEOUT = timedelta(seconds=5)
"""Of one workflow task: how long a run stands still whose worker was killed in the middle of one. Temporal's own
default is 10 s; a task here takes milliseconds, and a replay of the longest history about two seconds."""
MEMO_AGENT = "agent"
"""Key of the memo that names the agent, so that a list of runs needs no store."""
