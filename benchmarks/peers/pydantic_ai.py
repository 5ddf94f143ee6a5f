"""Pydantic AI: an ``Agent`` with ``TemporalDurability``, in the file of its workflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from temporalio import workflow


async def work(size: int) -> str:
    """Do some work.

    Args:
        size: How many bytes to return.
    """
    return "x" * size


agent = Agent(
    OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0))),
    name="bench",
    tools=[work],
    capabilities=[TemporalDurability()],
)


@workflow.defn(name="PydanticAI")
class Workflow(PydanticAIWorkflow):
    """One run."""

    __pydantic_ai_agents__ = [agent]  # noqa: RUF012  # as its documentation writes it

    @workflow.run
    async def run(self, order: str) -> str:
        """The last text."""
        result = await agent.run(order, usage_limits=UsageLimits(request_limit=None))
        return result.output


ACTIVITIES: list[Callable[..., Any]] = []
"""The plugin finds those of the agent."""


def build_plugin() -> PydanticAIPlugin:
    """For the client."""
    return PydanticAIPlugin()
