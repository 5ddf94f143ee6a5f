"""Agents beside your own workflows, in your own Temporal worker: the plugin adds the engine to it.

perdure server start && eval "$(perdure env)"
OPENAI_API_KEY=… python examples/07_own_worker.py
"""

import asyncio
import os
import uuid

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from perdure import Agent, PerdurePlugin

QUEUE = os.environ.get("PERDURE_TASK_QUEUE", "perdure")
critic = Agent("critic", "openai:gpt-5-mini", instructions="You review one line of text, in one line.")


@workflow.defn(sandboxed=False)
class Review:
    """An ordinary workflow that runs an agent for each line, all at once, as child workflows."""

    @workflow.run
    async def run(self, lines: list[str]) -> list[str]:
        runs = [workflow.execute_child_workflow("AgentWorkflow", {"agent": "critic", "message": x}) for x in lines]
        return [answer["content"] for answer in await asyncio.gather(*runs)]


async def main() -> None:
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "localhost:7233"))
    async with Worker(client, task_queue=QUEUE, workflows=[Review], plugins=[PerdurePlugin(agents=[critic])]):
        lines = ["It was a dark and stormy night.", "Call me Ishmael."]
        print(await client.execute_workflow("Review", lines, id=f"review-{uuid.uuid4()}", task_queue=QUEUE))


if __name__ == "__main__":
    asyncio.run(main())
