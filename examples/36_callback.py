"""A tool that the user's editor runs: the call waits until the editor, a client, has answered it."""

import asyncio

from pydantic import BaseModel

from perdure import Agent, callback_tool, local


class Place(BaseModel):
    path: str
    line: int = 1


open_file = callback_tool(
    "open_file",
    "Show a file to the user, and get the text that is selected there.",
    Place,
    output=str,
    expires="1h",
    on_expiry="The user did not look.",
)
helper = Agent("helper", "openai:gpt-5-mini", instructions="Explain what the user selects.", tools=[open_file])


async def main() -> None:
    async with local(agents=[helper]) as client:
        run = await client.start(helper, "What does this line in setup.py do?")
        async for event in run.events():  # the editor follows the run
            if event.type == "question.asked" and event.kind == "callback":
                place = Place.model_validate(event.arguments)
                print(f"(the editor opens {place.path} at line {place.line})")
                await run.answer(event.call_id, "zip_safe=False", by="editor")
        print((await run.result()).content)


if __name__ == "__main__":
    asyncio.run(main())
