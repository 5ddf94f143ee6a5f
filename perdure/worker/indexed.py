"""Which search attributes the namespace of a worker has, and what is said where it lacks some."""

from __future__ import annotations

import logging

from temporalio import activity

from ..search_attributes import known

logger = logging.getLogger("perdure.worker")


class Indexed:
    """Asked by every reply that says so (``stages.indexed``). Whoever registers them later need not restart workers."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    async def __call__(self) -> tuple[str, ...] | None:
        """Those that are there, of the present activity's namespace; None where it cannot be told. Never raises."""
        try:
            client = activity.client()
        except RuntimeError:  # a test's environment
            return None
        found = await known(client)
        if found is None:
            return None
        if (lacks := str(found)) and self._said.get(client.namespace) != lacks:
            logger.warning(
                "search attributes of namespace %s: %s. Runs are served all the same; what waits for approval is "
                "found by asking every open run. `perdure server setup` registers them.",
                client.namespace,
                lacks,
            )
        self._said[client.namespace] = lacks
        return found.names
