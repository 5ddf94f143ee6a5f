"""OpenAI Agents SDK: an ``Agent`` under Temporal's plugin for it, whose tool is an activity."""

from __future__ import annotations

from datetime import timedelta

from agents import Agent, OpenAIProvider, RunConfig, Runner
from openai import AsyncOpenAI
from temporalio import activity, workflow
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool

TIMEOUT = timedelta(seconds=60)
"""The plugin's default for a model call; a tool has none."""


@activity.defn
async def work(size: int) -> str:
    """Do some work.

    Args:
        size: How many bytes to return.
    """
    return "x" * size


@workflow.defn(name="OpenAIAgents")
class Workflow:
    """One run."""

    @workflow.run
    async def run(self, order: str) -> str:
        """The last text."""
        agent = Agent(name="bench", model="gpt-4o-mini", tools=[activity_as_tool(work, start_to_close_timeout=TIMEOUT)])
        # Traces would be sent to OpenAI.
        config = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, order, max_turns=None, run_config=config)
        return str(result.final_output)


ACTIVITIES = [work]


def build_plugin() -> OpenAIAgentsPlugin:
    """For the client. The model speaks chat completions, as everyone's does here."""
    return OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=TIMEOUT),
        model_provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0), use_responses=False),
    )
