"""Files in a scripted run: what the model is given of them, and what tests can look at."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, File, tool
from perdure.errors import InvalidInputError
from perdure.testing import call, scripted
from perdure.types.messages import iter_file_parts

CAT = File(b"\x89PNG\r\n\x1a\n", name="cat.png")


@tool
def draw() -> list[Any]:
    """Draw a cat."""
    return ["A cat:", CAT]


def an_agent(*tools: Any) -> Agent:
    return Agent("scripted", "openai:gpt-5-mini", tools=tools)


def test_a_script_sees_the_files_of_messages_and_results() -> None:
    agent = an_agent(draw)
    with scripted(agent, [call("draw"), "Two cats."]) as script:
        response = agent.call_sync(["A cat:", CAT, File.at("https://example.com/dog.png")])
    asked, again = script.requests
    assert [part.name for part in iter_file_parts(asked.messages)] == ["cat.png", None]
    assert list(asked.files.values()) == [CAT.data]
    assert len(list(iter_file_parts(again.messages))) == 3
    (result,) = [result for message in response.messages for result in message.tool_results]
    assert (result.content, [part.name for part in result.files]) == ("A cat:", ["cat.png"])


async def test_long_texts_among_files_go_by_way_of_the_store() -> None:
    agent = an_agent()
    long = "x" * 200_000
    async with scripted(agent, ["Read."]) as script:
        turn = await script.send([long, CAT, "short", long], id="s1")
        response = await turn.result()
        kept = await script.client.file(next(iter_file_parts(response.messages)))
    assert [part.text for part in response.messages[0].parts if part.type == "text"] == [long, "short", long]
    assert kept == CAT.data


@pytest.mark.parametrize("message", [[], [""], CAT, b"x", 3, [CAT, 3]])
def test_what_is_no_message(message: Any) -> None:
    agent = an_agent()
    with scripted(agent, []), pytest.raises(InvalidInputError, match="message"):
        agent.call_sync(message)
