"""A provider of your own: one async generator, under the name that models begin with. Needs no key."""

from collections.abc import AsyncIterator

from perdure import Agent, register_provider
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.types.messages import TextPart, Usage


class Shout:  # a real one calls an API, and raises ProviderError when that fails
    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        said = request.messages[-1].text
        text = said.upper() + "!" * request.settings.get("marks", 1)
        yield TextDelta(text)  # what arrives, as it arrives; then the whole reply
        usage = Usage(input_tokens=len(said.split()), output_tokens=len(text.split()))
        yield Completed((TextPart(text=text),), usage=usage, model=request.model)


register_provider("shout", Shout())
crier = Agent("crier", "shout:v1", settings={"marks": 3})

if __name__ == "__main__":
    response = crier.call_sync("hear ye")
    print(f"{response.content} ({response.usage.total_tokens} tokens)")
