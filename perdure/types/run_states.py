"""The words for the states of a run: apart, so that commands that only name them start quickly."""

from typing import Literal

RunState = Literal[
    "running", "held_up", "waiting", "idle", "paused", "other_store",
    "completed", "failed", "cancelled", "terminated", "timed_out",
]  # fmt: skip
"""The state of a run, by one word everywhere: lists, ``status``, HTTP, the console, the store's rows.

``running``: it works, or a worker is to. ``held_up``: a call of it, or of a subagent's, has failed three times in a
row, and is tried again. ``waiting``: for a decision or an answer. ``idle``: a session between two turns. ``paused``:
until an operator resumes it. ``other_store``: it is open, and another store than this client's has what it does. The
others are how it ended."""
StateFilter = Literal["open", RunState]
"""What lists are filtered by: ``open`` is any state that is not an end."""
OPEN_STATES: tuple[RunState, ...] = ("running", "held_up", "waiting", "idle", "paused", "other_store")
ENDED_STATES: tuple[RunState, ...] = ("completed", "failed", "cancelled", "terminated", "timed_out")
