"""A run as it happens: live text, progress of tools; come back with the last number to go on from there."""

import asyncio
import sys

from perdure import Agent, ToolContext, local, tool


@tool
async def audit(ctx: ToolContext, year: int) -> str:
    """Audit the books of a year."""
    for quarter in range(1, 5):
        ctx.progress(f"quarter {quarter}")
    return f"{year}: no findings"


auditor = Agent("auditor", "openai:gpt-5-mini", tools=[audit])


async def main(after: int) -> None:
    async with local(agents=[auditor]) as client:
        run = await client.start("auditor", "How were the books of 2025?", id="live-2025", if_exists="attach")
        async for event in run.events(after):
            if event.type == "model.delta":
                print(event.text, end="", flush=True)
            elif event.type in ("tool.progress", "model.completed", "run"):
                print(f"\n{event.seq} {event.type}", getattr(event, "message", "") or getattr(event, "state", ""))


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
