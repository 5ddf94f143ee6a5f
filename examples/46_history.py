"""A conversation to go on from: made by hand, taken from a response, or only named."""

import asyncio

from perdure import Agent, Message, local

guide = Agent("guide", "openai:gpt-5-mini", instructions="You know the town. Answer in one line.")


async def main() -> None:
    async with local(agents=[guide]) as client:
        by_hand = [Message.user("My name is Ana."), Message.assistant("Hello, Ana.")]
        first = await (await client.start(guide, "Where is the museum?", history=by_hand)).result()
        print(f"{len(first.messages)} messages: {first.content}")

        # The messages of the response, as they are or edited; its instructions are the agent's own, again.
        talk = [message for message in first.messages if message.role != "system"]
        second = await (await client.start(guide, "And who am I?", history=talk)).result()
        print(f"{len(second.messages)} messages: {second.content}")

        # Another run by reference: nothing is copied, however long it was.
        third = await (await client.start(guide, "Is it far?", history=client.run(second.context_id))).result()
        print(f"{len(third.messages)} messages: {third.content}")


if __name__ == "__main__":
    asyncio.run(main())
