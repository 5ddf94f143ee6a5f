"""Which agents are known: a worker records what it serves in the store when it starts.

One place decides, for starts, messages and schedules by Python, commands, HTTP and the console. A store in which no
worker has recorded any agent knows nothing: a first start may come before its worker.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..errors import PerdureError
from .handles import ClientHandle

logger = logging.getLogger("perdure.agents")  # commands print its warnings, and none of perdure.client

_STORE_SECONDS = 5.0
"""Longest time that a start waits for the store's answer."""
_SHOWN_NAMES = 10
_known: WeakKeyDictionary[ClientHandle, set[str]] = WeakKeyDictionary()
"""By client the names that its store had. They are not forgotten: a definition is only deleted by hand."""


async def list_other_agents(client: ClientHandle, name: str) -> list[str] | None:
    """Return the names of the agents that workers have recorded, if ``name`` is none of them; None if it is, or if the
    client has no store or the store no agents. Raises ``StoreError``."""
    known = _known.setdefault(client, set())
    if client.store_url is None or name in known:
        return None
    store = await client.store()
    if not store.store_id:  # no worker has set it up
        return None
    if await store.list_agents(name):
        known.add(name)
        return None
    return sorted({row.name for row in await store.list_agents()}) or None


async def warn_of_unknown_agent(client: ClientHandle, name: str) -> None:
    """Log a warning if no worker has recorded the agent. Does not wait for a store that does not answer."""
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            others = await list_other_agents(client, name)
    except (PerdureError, TimeoutError) as error:
        logger.debug("whether agent %r is known cannot be read: %s: %s", name, type(error).__name__, error)
        return
    if others is not None:
        logger.warning(
            "no worker has recorded an agent %r: its run waits for one that serves it. Recorded are: %s.",
            name, _describe_names(name, others),
        )  # fmt: skip


def _describe_names(name: str, others: Sequence[str]) -> str:
    """List the names, those that are most like ``name`` first."""
    like = difflib.get_close_matches(name, others, n=3)
    names = [*like, *(other for other in others if other not in like)]
    more = f" and {len(names) - _SHOWN_NAMES} others" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
