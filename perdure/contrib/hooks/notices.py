"""Telling somebody: when a run has used many tokens, and every so many iterations."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import DefinitionError
from ...hooks import HookSet, hook
from ...tools import RunContext
from ...types.messages import Usage

logger = logging.getLogger("perdure.hooks")

Tell = Callable[[RunContext[Any], int], Any]
"""``tell(ctx, number)``, sync or async. What it returns is dropped."""


def _log(ctx: RunContext[Any], tokens: int) -> None:
    logger.warning("run %s of agent %s has used %s tokens", ctx.run_id, ctx.agent, f"{tokens:,}")


def warn_on_tokens(limit: int, tell: Tell = _log, *, namespace: str = "token_warnings") -> HookSet:
    """Call ``tell(ctx, tokens)`` once for each run, when its replies have come to more than ``limit`` tokens.

    Without ``tell`` a warning is logged. ``Limits(tokens=…)`` stops a run instead.
    """
    _whole("warn_on_tokens", "limit", limit)

    async def count(usage: Usage, ctx: RunContext[Any]) -> None:
        kept = await ctx.memory.get(namespace, ctx.run_id, {"tokens": 0, "warned": False})
        tokens = kept["tokens"] + usage.total_tokens
        due = tokens > limit and not kept["warned"]
        await ctx.memory.put(namespace, ctx.run_id, {"tokens": tokens, "warned": kept["warned"] or due})
        if due:
            await _told(tell, ctx, tokens)

    return HookSet([hook("after_llm_call", name="warn_on_tokens")(count)])


def notify_every(n: int, tell: Tell, *, namespace: str = "notices") -> HookSet:
    """Call ``tell(ctx, iteration)`` behind every ``n``-th reply of a turn.

    A reply whose worker was lost before it was recorded is asked for again, and told of again.
    """
    _whole("notify_every", "n", n)

    async def notify(iteration: int, ctx: RunContext[Any]) -> None:
        this = f"{ctx.task_id} {iteration}"  # a summary of the conversation is a reply too, and no iteration
        if iteration % n == 0 and await ctx.memory.get(namespace, ctx.run_id) != this:
            await ctx.memory.put(namespace, ctx.run_id, this)
            await _told(tell, ctx, iteration)

    return HookSet([hook("after_llm_call", name="notify_every")(notify)])


async def _told(tell: Tell, ctx: RunContext[Any], number: int) -> None:
    said = tell(ctx, number) if inspect.iscoroutinefunction(tell) else await _in_thread(tell, ctx, number)
    if isinstance(said, Awaitable):
        await said


async def _in_thread(tell: Tell, ctx: RunContext[Any], number: int) -> Any:
    """A plain function may block, and other hooks and tools share the loop."""
    return await asyncio.to_thread(tell, ctx, number)


def _whole(name: str, field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(f"{name}: {field} is a whole number of at least 1, not {value!r:.100}")
