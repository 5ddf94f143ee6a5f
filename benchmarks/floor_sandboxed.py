"""``Floor2`` in Temporal's sandbox, in a file of its own, as most programs have their workflows."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchmarks.floor import OPTIONS, build_order


@workflow.defn
class Floor2Sandboxed:
    """Two activities an iteration."""

    @workflow.run
    async def run(self, task: dict[str, Any]) -> str:
        """As ``Floor2``'s."""
        for done in range(task["iterations"]):
            asked = await workflow.execute_activity("model", build_order(task, done), **OPTIONS)
            await workflow.execute_activity("work", asked, **OPTIONS)
        return str(await workflow.execute_activity("model", "until 0 size 0", **OPTIONS))
