"""Search attributes and memo: what Temporal can be asked about runs, besides their ids and times."""

from __future__ import annotations

from typing import Literal

AGENT = "PerdureAgent"
"""The agent's name. Clients give it to the runs that they start, parents to their children."""
STATUS = "PerdureStatus"
"""An :data:`IndexedStatus`."""
PENDING = "PerdurePendingApprovals"
"""How much waits for a person in the run: the length of ``Status.approvals``."""

ATTRIBUTES: dict[str, Literal["Keyword", "Int"]] = {AGENT: "Keyword", STATUS: "Keyword", PENDING: "Int"}
"""Their types, as Temporal calls them."""

WAITING = "PerdureWaiting"
"""Key of the memo for what waits for a person in the run: a list like ``Status.approvals``, without how often was
reminded. It is whole, or it is not there: the run itself always says it (the query ``status``)."""
WAITING_BYTES = 40 * 1024
"""Of that list, as JSON: the whole memo stands in a row of visibility, which has 64 KiB in MySQL."""
WAITING_CALLS = 50
"""In that list: with each that is decided on, what still waits is written once more."""

TURN = "PerdureTurn"
"""Key of the memo for the ``task_id`` of a turn, empty before the first. Nothing here reads it. It is written by
workflow tasks that brought something and have no other command, so that they have one: a turn may have begun since."""

IndexedStatus = Literal["running", "waiting", "paused"]
"""Of an open run: at work, or between two turns; waiting for a person; paused until somebody resumes it. It stays as it
was last when the run ends: ``ExecutionStatus`` says that."""
