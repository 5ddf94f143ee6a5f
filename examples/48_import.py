"""A conversation that another program held with a model's API goes on in a run."""

import asyncio

from perdure import Agent, local
from perdure.providers import import_messages


def measure(city: str) -> str:
    """The temperature in a city."""
    return {"Lisbon": "24 °C", "Oslo": "9 °C"}[city]


weather = Agent("weather", "openai:gpt-5-mini", tools=[measure])

# As it was sent to Anthropic's API; it goes on with a model of OpenAI's.
REQUEST = {
    "system": "You are a weather service.",
    "messages": [
        {"role": "user", "content": "How warm is it in Lisbon?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "measure", "input": {"city": "Lisbon"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "24 °C"}]},
        {"role": "assistant", "content": "24 °C."},
    ],
}


async def main() -> None:
    imported = import_messages("anthropic", REQUEST["messages"], system=REQUEST["system"])
    async with local(agents=[weather]) as client:
        override = {"instructions": imported.system}
        run = await client.start(weather, "And in Oslo?", history=imported.messages, override=override)
        response = await run.result()
    for message in response.messages:
        for result in message.tool_results:
            print(f"measured: {result.content}")
    print(response.content)


if __name__ == "__main__":
    asyncio.run(main())
