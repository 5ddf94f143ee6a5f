"""An author's own workflow, whose children are agents. The sandbox imports this file, which is why it is small."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel, field_validator

    from perdure import Agent
    from perdure.workflow import run_agent


class City(BaseModel):
    name: str


CITY = Agent("city", "openai:gpt-5", output=City)
TOWN = Agent("city", "openai:gpt-5", output=int)


class Visit(BaseModel):
    year: int

    @field_validator("year")
    @classmethod
    def lies_ahead(cls, year: int) -> int:
        """Read the clock, which the sandbox forbids."""
        if year < datetime.now(UTC).year:
            raise ValueError("it lies in the past")
        return year


VISIT = Agent("visit", "openai:gpt-5", output=Visit)


@workflow.defn
class VisitPipeline:
    """An agent whose validator does what the sandbox forbids."""

    @workflow.run
    async def run(self) -> int:
        return (await run_agent(VISIT, "When?")).output.year


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


@workflow.defn
class TypedPipeline:
    """An agent by its object, by its name, and by an object of other code."""

    @workflow.run
    async def run(self) -> list[Any]:
        by_object = await run_agent(CITY, "Where?")
        by_name = await run_agent("city", "Where?")
        try:
            await run_agent(TOWN, "Where?")
        except ApplicationError as error:
            return [by_object.output == City(name="Oslo"), by_name.output, error.type]
        return []
