"""PARITY.md, rows B6, D3 and D6: conversations that are kept short, and what a store of messages can be asked."""

from __future__ import annotations

from perdure import Agent, Compaction, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import ThinkingPart
from tests.support.checks import users
from tests.support.engine import Engine

LONG = "because " * 100


@tool(inline=True)
def note(what: str) -> str:
    """Note something."""
    return f"noted: {what}"


async def test_b6_old_thinking_and_tool_inputs_are_cut_and_all_else_stays_whole(engine: Engine) -> None:
    def reply(request: ModelRequest) -> object:
        count = sum(message.role == "assistant" for message in request.messages)
        return [f"Reply {count}. {LONG}", call("note", what=f"{count} {LONG}")] if count < 4 else "Done."

    provider = ScriptedProvider(reply)
    compaction = Compaction.truncate(after=2, keep=10, every=1)
    async with engine.served(Agent("notes", provider, tools=[note], compaction=compaction)) as client:
        history = [
            {"type": "user", "content": LONG},
            {"type": "thinking", "content": LONG},
            {"type": "assistant", "content": "Hello."},
        ]
        response = await (await client.start("notes", "Note it.", history=history)).result()
    sent = provider.requests[-1].messages
    cut = "because be… [790 characters cut]"
    thinking = [part.text for message in sent for part in message.parts if isinstance(part, ThinkingPart)]
    assert thinking == [cut]
    inputs = [str(part.arguments["what"]) for message in sent for part in message.tool_calls]
    assert [text.endswith("characters cut]") for text in inputs] == [True, False, False]
    assert inputs[0].startswith("1 because ")
    assert all(len(message.text) > 800 for message in sent if message.role == "assistant" and message.tool_calls)
    assert all(len(part.content) > 800 for message in sent for part in message.tool_results)
    assert users(sent) == [LONG, "Note it."]
    whole = [str(part.arguments["what"]) for message in response.messages for part in message.tool_calls]
    assert all(len(text) > 800 for text in whole), "the transcript stays whole"


async def test_d3_at_most_so_many_messages_and_compaction_by_itself(engine: Engine) -> None:
    """``maxMessages`` is a window, ``autoCompact`` a summary at a threshold; neither is on by default."""

    def reply(request: ModelRequest) -> str:
        return "Summed up." if "Sum up" in users(request.messages)[-1] else f"{len(request.messages)}"

    plain = Agent("plain", ScriptedProvider(reply))
    windowed = Agent("windowed", ScriptedProvider(reply), compaction=Compaction.window(messages=6))
    compacted = Agent("compacted", ScriptedProvider(reply), compaction=Compaction.summarise(at=100, keep_last=2))
    assert plain.compaction is None
    async with engine.served(plain, windowed, compacted) as client:
        said: dict[str, list[str]] = {}
        for name in ("plain", "windowed", "compacted"):
            for number in range(6):
                turn = await client.send(name, f"{number} " + "word " * 20, id=f"{engine.task_queue}-{name}")
                said.setdefault(name, []).append((await turn.result()).content)
        runs = {name: client.run(f"{engine.task_queue}-{name}") for name in said}
        kept = {name: await run.transcript() for name, run in runs.items()}
        for run in runs.values():
            await run.close()
    assert said["plain"] == ["1", "3", "5", "7", "9", "11"]
    assert max(int(count) for count in said["windowed"]) <= 6 + 1, "and the note of what is left out"
    assert len(kept["windowed"]) == 12, "a window changes no transcript"
    assert "Summed up." in kept["compacted"][0].text
    assert len(kept["compacted"]) < 12


async def test_d6_a_store_of_messages_appends_gives_the_recent_and_all_counts_and_compacts(engine: Engine) -> None:
    def reply(request: ModelRequest) -> str:
        return "Summed up." if "Sum up" in users(request.messages)[-1] else "Yes."

    agent = Agent("store", ScriptedProvider(reply), compaction=Compaction.summarise(at=100, keep_last=2))
    async with engine.served(agent) as client:
        run = None
        for number in range(5):
            await (await client.send("store", f"{number} " + "word " * 30, id=engine.task_queue)).result()
            run = client.run(engine.task_queue)
        assert run is not None
        present, everything = await run.transcript(), await run.transcript(full=True)
        await run.close()
        cleared = await (await client.start("store", "Anew.")).result()
    said = [message for message in everything if message.replaces is None]
    assert [message.text.split()[0] for message in said if message.role == "user"] == list("01234"), "append, all"
    assert len(said) == 10, "count"
    assert [message.role for message in said[2:4]] == ["user", "assistant"], "range"
    assert present[-2:] == everything[-2:], "the most recent"
    assert len(present) < len(everything), "compact"
    assert len(cleared.messages) == 2, "clear: another conversation"
