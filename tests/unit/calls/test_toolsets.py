"""Lists of toolsets by themselves: servers that hang, lists that will not do, code that changes under a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from perdure import Agent, RunContext, Toolset, tool
from perdure.calls.author_loop import AuthorLoop
from perdure.calls.call import ConversationCall, ToolCall
from perdure.calls.toolsets import Toolsets
from perdure.errors import DefinitionError, ToolsetError
from perdure.ports.model import ToolSpec
from perdure.ports.toolset import ListedTool
from perdure.store.cache import ByteLRU
from perdure.types.messages import BlobRef
from perdure.types.wire import ModelInput, ToolInput


class Listed(Toolset):
    """Lists what it is given; hangs while it is given nothing."""

    name = "listed"
    recheck = 0.0

    def __init__(self, *tools: Any, **options: Any) -> None:
        self.tools: tuple[Any, ...] = tools
        self.asked = 0
        vars(self).update(options)

    async def list(self, ctx: RunContext) -> Sequence[Any]:
        self.asked += 1
        if not self.tools:
            await asyncio.Event().wait()
        return self.tools


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Run:
    """A run that makes model calls on one worker."""

    def __init__(self, author: AuthorLoop) -> None:
        self._blobs: dict[str, str] = {}
        self.pinned: BlobRef | None = None
        self.left_out: list[str] = []
        self.toolsets = Toolsets(author, self._load, ByteLRU(10**6))

    async def _load(self, ref: BlobRef) -> str:
        return self._blobs[ref.hash]

    async def offered(self, agent: Agent) -> Agent:
        task = ModelInput(agent="a", context_id="c", task_id="t", scope="s", op=1, iteration=1, pinned=self.pinned)
        call = ConversationCall(input=task)
        found, pinned = await self.toolsets.add_offered_tools(agent, call, RunContext())
        self.left_out = call.recording.left_out
        self._blobs |= {blob.hash: blob.body.decode() for blob in call.recording.blobs}
        self.pinned = pinned or self.pinned
        return found


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    author = AuthorLoop()
    author.start()
    yield Run(author)
    author.stop()


def names(agent: Agent) -> list[str]:
    return [one.name for one in agent.toolbox]


async def test_who_waits_for_a_server_that_hangs_waits_once_and_not_for_all_before(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.calls.toolsets.TOOLSET_TIMEOUT", 0.3)
    hangs = Listed()
    agent = Agent("a", "openai:gpt-5", toolsets=[hangs])
    found = await asyncio.gather(*(run.offered(agent) for _ in range(20)), return_exceptions=True)
    assert [type(one) for one in found] == [ToolsetError] * 20
    assert hangs.asked == 1
    hangs.tools = (ToolSpec("find", "Find.", {}),)
    assert names(await run.offered(agent)) == ["find"], "the next attempt asks again"


async def test_a_function_that_never_says_whom_a_list_is_for_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Undecided(Listed):
        async def audience(self, ctx: RunContext) -> str:
            await asyncio.Event().wait()
            return "nobody"

    monkeypatch.setattr("perdure.calls.toolsets.TOOLSET_TIMEOUT", 0.1)
    with pytest.raises(ToolsetError, match=r"could not determine its audience: it did not return within 0\.1 s"):
        await run.offered(Agent("a", "openai:gpt-5", toolsets=[Undecided(ToolSpec("find", "Find.", {}))]))


@pytest.mark.parametrize("wrong", [ToolSpec("add", "Clashes.", {}), ToolSpec("x", None, {})])  # type: ignore[arg-type]
async def test_a_run_keeps_its_list_where_a_new_one_will_not_do(run: Run, wrong: Any) -> None:
    changing = Listed(ToolSpec("find", "Find.", {}), on_change="refresh")
    agent = Agent("a", "openai:gpt-5", tools=[add], toolsets=[changing])
    assert names(await run.offered(agent)) == ["add", "find"]
    changing.tools = (wrong, ToolSpec("more", "More.", {}))
    assert names(await run.offered(agent)) == ["add", "find"]
    changing.tools = (ToolSpec("more", "More.", {}),)
    assert names(await run.offered(agent)) == ["add", "more"]


@pytest.mark.parametrize("on_change", ["refuse", "refresh"])
async def test_a_tool_that_the_code_has_got_too_under_a_run_is_the_code_s(run: Run, on_change: str) -> None:
    listed = Listed(ToolSpec("add", "Of the server.", {}), ToolSpec("find", "Find.", {}), on_change=on_change)
    assert names(await run.offered(Agent("a", "openai:gpt-5", toolsets=[listed]))) == ["add", "find"]
    deployed = await run.offered(Agent("a", "openai:gpt-5", tools=[add], toolsets=[listed]))
    assert names(deployed) == ["add", "find"]
    assert deployed.toolbox.get("add") is add


@pytest.mark.parametrize(
    "wrong",
    [ToolSpec("x", None, {}), ToolSpec("x", "", None), ListedTool("x", "", {}, timeout="soon")],  # type: ignore[arg-type]
)
async def test_what_is_no_tool_is_named_with_its_toolset(run: Run, wrong: Any) -> None:
    agent = Agent("a", "openai:gpt-5", toolsets=[Listed(wrong)])
    with pytest.raises(DefinitionError, match="toolset 'listed' lists 'x', which is not a valid tool"):
        await run.offered(agent)


NAMES = ["x.y", "x:y", "x_y", "a" * 60 + "_list_all", "a" * 60 + "_list_others", "größe", "__finish__"]


@pytest.mark.parametrize("order", [1, -1])
async def test_names_that_collide_get_a_suffix_that_does_not_depend_on_the_order(run: Run, order: int) -> None:
    toolset = Listed(*(ToolSpec(name, name, {}) for name in NAMES[::order]))
    offered = await run.offered(Agent("a", "openai:gpt-5", toolsets=[toolset]))
    assert {one.description: one.name for one in offered.toolbox} == {
        "x_y": "x_y",
        "x.y": "x_y_b24ca9",
        "x:y": "x_y_1274e2",
        "a" * 60 + "_list_all": "a" * 60 + "_lis",
        "a" * 60 + "_list_others": "a" * 57 + "_1387cb",
        "größe": "gr__e",
        "__finish__": "__finish___fda6b9",
    }


async def test_a_changed_name_gives_way_to_another_source_s_and_its_calls_run(run: Run) -> None:
    asked: list[str] = []

    class Dotted(Listed):
        name = "dotted"

        async def call(self, name: str, arguments: Any, ctx: Any) -> str:
            asked.append(name)
            return "done"

    dotted = Dotted(ToolSpec("add.it", "Dotted.", {}))

    @tool
    def add_it() -> str:
        """Add it."""
        return "own"

    agent = Agent("a", "openai:gpt-5", tools=[add_it], toolsets=[dotted])
    offered = await run.offered(agent)
    own, changed = names(offered)
    assert (own, changed) == ("add_it", "add_it_921f03")
    assert await run.offered(agent) is offered, "the pinned list has the changed name"
    definition = next(one.definition for one in offered.toolbox if one.name == changed)
    task = ToolInput(
        agent="a",
        context_id="c",
        task_id="t",
        scope="s",
        op=1,
        iteration=1,
        call_id="1",
        name=changed,
        toolset="dotted",
        definition=definition,
    )

    async def context() -> RunContext:
        return RunContext()

    found = await run.toolsets.find_tool(agent, ToolCall(task), context)
    assert found is not None
    assert await found.bind({})() == "done"
    assert asked == ["add.it"]


async def test_bad_tools_of_a_server_are_left_out_alone(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"items": deep}
    bad = [ToolSpec("", "", {}), ToolSpec("nan", "", {"default": float("nan")}), ToolSpec("deep", "", deep)]
    toolset = Listed(*bad, ToolSpec("good", "Good.", {}), ToolSpec("good", "Twice.", {}), on_change="refresh")
    agent = Agent("a", "openai:gpt-5", toolsets=[toolset])
    for _ in range(2):
        offered = await run.offered(agent)
        assert [(one.name, one.description) for one in offered.toolbox] == [("good", "Good.")]
        assert run.left_out == ["", "nan", "deep", "good"]
    assert len(caplog.messages) == 4, "each is told once"
    assert "toolset listed: tool 'good' is left out: the toolset lists another tool of this name" in caplog.messages
