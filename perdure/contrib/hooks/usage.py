"""What runs take: tokens and cost, and which tools were called how often."""

from __future__ import annotations

from typing import Any, Protocol

from ...hooks import HookSet, hook
from ...tools import RunContext, ToolContext
from ...types.messages import ToolResultPart, Usage


class Kept(Protocol):
    """What reads memory: ``client.memory``, or ``ctx.memory`` in a tool or hook."""

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """One value."""
        ...

    async def list(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, Any]:
        """Values by their keys."""
        ...


class TokenCollector(HookSet):
    """Adds up the tokens and the cost of every run: ``await collector.of(client.memory, run.id)``.

    They are kept in the memory namespace ``namespace``, by run id, until somebody deletes them.
    """

    def __init__(self, namespace: str = "tokens") -> None:
        self.namespace = namespace
        super().__init__([hook("after_llm_call", name="TokenCollector")(self._add)])

    async def _add(self, usage: Usage, cost_usd: float | None, ctx: RunContext) -> None:
        sums = await self.of(ctx.memory, ctx.run_id)
        found = {"calls": 1, **usage.model_dump(), "cost_usd": cost_usd or 0.0}
        await ctx.memory.put(self.namespace, ctx.run_id, {name: sums.get(name, 0) + n for name, n in found.items()})

    async def of(self, memory: Kept, run_id: str) -> dict[str, Any]:
        """``calls``, ``input_tokens``, ``output_tokens``, …, ``cost_usd`` of the run; empty before its first reply."""
        sums: dict[str, Any] = await memory.get(self.namespace, run_id, {})
        return sums


class ToolUsage(HookSet):
    """Which tools a run has called, how often, and how often with an error: ``await usage.of(client.memory, run.id)``.

    One entry for each call in the memory namespace ``namespace``, because calls run at the same time.
    """

    def __init__(self, namespace: str = "tool_usage") -> None:
        self.namespace = namespace
        super().__init__([hook("after_tool_call", name="ToolUsage")(self._note)])

    async def _note(self, name: str, result: ToolResultPart, ctx: ToolContext) -> None:
        call = {"tool": name, "error": result.is_error}
        await ctx.memory.put(self.namespace, f"{ctx.run_id}#{ctx.idempotency_key}", call)

    async def of(self, memory: Kept, run_id: str, *, limit: int = 100_000) -> dict[str, dict[str, int]]:
        """``{"refund": {"calls": 3, "errors": 1}}``, of the first ``limit`` calls."""
        found: dict[str, dict[str, int]] = {}
        for key, call in (await memory.list(self.namespace, f"{run_id}#", limit=limit)).items():
            if key.rpartition("#")[0] != run_id:  # of a run whose id begins with this one's
                continue
            counts = found.setdefault(call["tool"], {"calls": 0, "errors": 0})
            counts["calls"] += 1
            counts["errors"] += call["error"]
        return found
