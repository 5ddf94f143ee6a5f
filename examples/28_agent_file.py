"""Agents as data: files in a folder, which refer to tools by their names, taken up while the worker runs."""

import asyncio
import tempfile
from pathlib import Path

from perdure import Agent, Client, Worker, tool


@tool
async def stock(article: str) -> str:
    """How many of an article are there."""
    return f"3 of {article}"


SHOP = """
model = "openai:gpt-5-mini"
instructions = "You sell {what}."
tools = ["stock"]
"""

greeter = Agent("greeter", "openai:gpt-5-mini", instructions="Greet.")


async def main() -> None:
    client = await Client.connect(start_server=True)
    folder = Path(tempfile.mkdtemp())
    taken_up = asyncio.Queue[str]()
    async with (
        Worker(client, [greeter], tools=[stock]) as worker,
        worker.folder(folder, say=taken_up.put_nowait),
    ):
        for what in ("lamps", "chairs"):
            (folder / "shop.toml").write_text(SHOP.format(what=what))
            print(await taken_up.get())
            run = await client.start("shop", "How many are left?")
            print((await run.result()).content)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
