"""Search attributes: what Temporal's visibility can be asked about runs, besides their ids and times."""

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

IndexedStatus = Literal["running", "waiting", "paused"]
"""Of an open run: at work, or between two turns; waiting for a person; paused until somebody resumes it. It stays as it
was last when the run ends: ``ExecutionStatus`` says that."""
