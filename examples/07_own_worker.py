"""Agents in your own Temporal worker, beside your own workflows: the plugin adds the engine to it."""

import asyncio

from temporalio import client, envconfig, worker, workflow

from perdure import Agent, PerdurePlugin


@workflow.defn(sandboxed=False)
class Review:
    @workflow.run
    async def run(self, line: str) -> str:  # an agent is a child workflow like any other
        start = {"agent": "critic", "message": line}
        answer: dict[str, str] = await workflow.execute_child_workflow("AgentWorkflow", start)
        return answer["content"]


async def main() -> None:
    temporal = await client.Client.connect(**envconfig.ClientConfig.load_client_connect_config())
    plugin = PerdurePlugin(agents=[Agent("critic", "openai:gpt-5-mini", instructions="You review one line.")])
    async with worker.Worker(temporal, task_queue="mine", workflows=[Review], plugins=[plugin]):
        print(await temporal.execute_workflow(Review.run, "Call me Ishmael.", id="review", task_queue="mine"))


asyncio.run(main())
