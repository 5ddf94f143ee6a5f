"""Which agents are known: a worker records what it serves in the store when it starts.

One place decides, for starts, messages and schedules by Python, commands, HTTP and the console. A store in which no
worker has recorded any agent knows nothing: a first start may come before its worker.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import shlex
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from temporalio.service import RPCError

from ..errors import AgentNotFoundError, PerdureError
from .handles import ClientHandle
from .progress import is_queue_polled

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
    names = await store.list_agent_names()
    known.update(names)
    return None if name in known else names or None


async def warn_of_unknown_agent(client: ClientHandle, name: str) -> None:
    """Log a warning if no worker has recorded the agent. Does not wait for a store that does not answer."""
    others = await _try_to_list_others(client, name)
    if others is not None:
        logger.warning(
            "no worker has recorded an agent %r: its run waits for one that serves it. Recorded are: %s.",
            name, _describe_names(name, others),
        )  # fmt: skip


async def refuse_unknown_agent(client: ClientHandle, name: str) -> None:
    """Raise ``AgentNotFoundError`` if no worker has recorded the agent, and workers poll the client's task queue: what
    they serve is recorded. The worker of a queue that is not polled may come later."""
    others = await _try_to_list_others(client, name)
    if others is None:
        return
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            is_polled = await is_queue_polled(client, client.task_queue)
    except (RPCError, TimeoutError) as error:
        logger.debug("whether %r is polled cannot be read: %s: %s", client.task_queue, type(error).__name__, error)
        return
    if is_polled:
        names = _describe_names(name, others)
        raise AgentNotFoundError(
            f"there is no agent {name!r:.200}: no worker has recorded it. Recorded are: {names}",
            hint="Correct the name, or start a worker that serves it: perdure worker FILE "
            f"--task-queue {shlex.quote(client.task_queue)}",
        )


async def _try_to_list_others(client: ClientHandle, name: str) -> list[str] | None:
    """As :func:`list_other_agents`; None also if the store does not answer in time."""
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            return await list_other_agents(client, name)
    except (PerdureError, TimeoutError) as error:
        logger.debug("whether agent %r is known cannot be read: %s: %s", name, type(error).__name__, error)
        return None


def _describe_names(name: str, others: Sequence[str]) -> str:
    """List the names, those that are most like ``name`` first."""
    like = difflib.get_close_matches(name, others, n=3)
    names = [*like, *(other for other in others if other not in like)]
    more = f" and {len(names) - _SHOWN_NAMES} others" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
