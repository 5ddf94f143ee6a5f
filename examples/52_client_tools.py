"""Tools that the browser brings along: declared with the message, called by the model, run by the client."""

import asyncio

from perdure import Agent, ClientTool, local

guide = Agent("guide", "openai:gpt-5-mini", instructions="Guide the user through the shop.", client_tools=True)
open_page = ClientTool(
    name="open_page",
    description="Open a page of the shop for the user.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


async def main() -> None:
    async with local(agents=[guide]) as client:
        run = await client.start(guide, "Where are the prices?", client_tools=[open_page])
        async for event in run.events():  # the browser follows the run
            if event.type == "question.asked" and event.name == "open_page":
                print(f"(the browser opens {(event.arguments or {})['path']})")
                await run.answer(event.call_id, "opened", by="browser")
        print((await run.result()).content)


if __name__ == "__main__":
    asyncio.run(main())
