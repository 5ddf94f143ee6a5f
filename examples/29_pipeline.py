"""A pipeline with a fan-out, as a Temporal workflow of your own: each step is an agent, and survives like one."""

import asyncio

from temporalio import client, envconfig, worker, workflow

from perdure import Agent, PerdurePlugin
from perdure.workflow import run_agent

MODEL = "openai:gpt-5-mini"
scout = Agent("scout", MODEL, instructions="You collect what speaks for and against one place, in two lines.")
editor = Agent("editor", MODEL, instructions="You recommend one of several places, in one line.")


@workflow.defn(sandboxed=False)  # only because this one file has everything
class Recommend:
    @workflow.run
    async def run(self, places: list[str]) -> str:
        found = await asyncio.gather(*(run_agent("scout", place) for place in places))  # child workflows, at once
        notes = "\n".join(f"{place}: {one.content}" for place, one in zip(places, found, strict=True))
        answer = await run_agent("editor", notes, id=f"{workflow.info().workflow_id}/editor")
        tokens = sum(one.usage.total_tokens for one in (*found, answer))
        return f"{answer.content} ({len(found) + 1} runs, {tokens} tokens)"


async def main() -> None:
    temporal = await client.Client.connect(**envconfig.ClientConfig.load_client_connect_config())
    plugin = PerdurePlugin(agents=[scout, editor])
    async with worker.Worker(temporal, task_queue="trips", workflows=[Recommend], plugins=[plugin]):
        places = ["Oslo", "Rome", "Lisbon"]
        print(await temporal.execute_workflow(Recommend.run, places, id="trip", task_queue="trips"))


if __name__ == "__main__":
    asyncio.run(main())
