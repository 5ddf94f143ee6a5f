"""An image in a message, and one from a tool. Bytes are kept in the store; Temporal's history has references."""

import sys

from perdure import Agent, File, tool


@tool
def map_of(place: str) -> list[object]:
    """A map of a place."""
    return [f"{place}, north is up.", File(b"\x89PNG\r\n\x1a\n", media_type="image/png", name="map.png")]


guide = Agent("guide", "openai:gpt-5-mini", tools=[map_of])
photo = File.read(sys.argv[1])
print(guide.call_sync(["Where was this taken? Look at a map of the place.", photo]).content)
