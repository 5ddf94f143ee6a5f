"""Tools that are known when a run begins: a toolset of one's own over a catalogue, and texts that the agent keeps."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from perdure import Agent, RunContext, ToolContext, Toolset, local
from perdure.artifacts import Artifacts
from perdure.ports.toolset import ListedTool

CATALOGUE: dict[str, dict[str, float]] = {"stock": {"bolts": 120, "nuts": 80}, "prices": {"bolts": 0.10, "nuts": 0.05}}
"""What a service would say that it can be asked."""


class Catalogue(Toolset):
    name = "catalogue"

    async def list(self, ctx: RunContext) -> Sequence[ListedTool]:  # once for a run; what it took is recorded
        schema = {"type": "object", "properties": {"part": {"type": "string"}}, "required": ["part"]}
        return [ListedTool(topic, f"Look up {topic} of a part.", schema, idempotent=True) for topic in CATALOGUE]

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> Any:
        return CATALOGUE[name][arguments["part"]]


clerk = Agent("clerk", "openai:gpt-5-mini", toolsets=[Catalogue(), Artifacts()])


async def main() -> None:
    async with local(agents=[clerk]) as client:
        run = await client.start(clerk, "What are our bolts worth? Write it into worth.md.")
        print((await run.result()).content)
        for artifact in await run.artifacts():
            print(f"--- {artifact}\n{await run.artifact(artifact.name)}")


asyncio.run(main())
