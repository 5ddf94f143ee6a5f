"""The port of nudges: how a client hastens the heartbeats of a run's calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Nudges(Protocol):
    """Asks workers to heartbeat the activities of a run at once: a cancellation arrives with the answer to a heartbeat.

    A nudge changes nothing, is not kept, and may be lost, late, repeated or forged: without it a worker heartbeats at
    its interval.
    """

    async def nudge(self, run_id: str) -> None:
        """Nudge the workers that have activities of the run, or of runs below it. Raises ``StoreError``."""

    def watch_nudges(self, on_nudge: Callable[[str], object]) -> Callable[[], None]:
        """Call ``on_nudge`` with the id of each run that is nudged, on the running event loop, until the returned
        function is called. Never raises: nudges that cannot be read are lost."""
        ...
