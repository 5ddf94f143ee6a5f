"""Somebody's own workflow, whose children are agents. The sandbox imports this file, which is why it is small."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from perdure.workflow import run_agent


@workflow.defn
class Pipeline:
    """Two drafts at once, and a last hand; then an agent that fails."""

    @workflow.run
    async def run(self, topic: str) -> list[Any]:
        """The answer, its tokens, and what the failing agent failed with."""
        drafts = await asyncio.gather(*(run_agent("draft", f"{topic} {n}") for n in range(2)))
        end = f"{workflow.info().workflow_id}/end"
        final = await run_agent("polish", " ".join(one.content for one in drafts), id=end)
        try:
            await run_agent("failing", "x")
        except ChildWorkflowError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
            return [final.content, final.usage.total_tokens, kind]
        return []
