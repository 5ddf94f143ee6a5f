"""Two runs side by side, by httpx."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent, Client, Message, tool
from perdure.client.run import Run
from perdure.console.texts import mark_changes
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import Usage
from tests.console.test_hostile import TEXT, check_page
from tests.console.test_run import script, served
from tests.support.engine import Engine
from tests.support.pages import Console, console
from tests.support.web import make_caller

STRANGER = make_caller("other", "operator", tenants=("other",))


@tool
def look_up(order: str) -> str:
    """Look up."""
    return f"order {order}: delivered"


def reply(request: Any) -> Any:
    asked = [message.text for message in request.messages if message.role == "user"]
    if request.messages[-1].role == "user" and len(asked) == 1:
        return ["Let me see", call("look_up", order="7")]
    return f"The answer to {asked[-1]} is **{len(asked)}**"


@asynccontextmanager
async def two_runs(engine: Engine) -> AsyncIterator[tuple[Client, Console, Run[Any], Run[Any]]]:
    """A run of two turns, and a fork after its first turn."""
    agent = Agent("desk", ScriptedProvider(reply), tools=[look_up])
    async with engine.served(agent) as client, console(client, STRANGER) as opened:
        origin = await client.start("desk", "Where is it?", mode="session", tenant="acme")
        await origin.turn().result()
        await (await origin.send("And the bill?")).result()
        fork = await origin.fork(at=2, message="And the refund?", by="ada")
        await fork.turn().result()
        yield client, opened, origin, fork


async def test_a_fork_and_its_origin(engine: Engine) -> None:
    async with two_runs(engine) as (_, opened, origin, fork):
        browser = opened.browse()
        page = await browser.open(f"/runs/{quote(fork.id, safe='')}")
        assert "Fork of" in page.text
        [link] = {given["href"] for _, given in page.tags if "/compare?left=" in given.get("href", "")}
        page = await browser.open(link.removeprefix("/console"))
        assert browser.response.status_code == 200
        assert "B is a fork of A, made after iteration 2 by ada" in page.text
        assert "The same until here: 4 messages, 2 iterations" in page.text
        shared, _, parted = page.text.partition("Different from here")
        assert "Where is it?" not in parted
        assert "delivered" in shared
        for text in ("And the bill?", "And the refund?", "The answer to And the"):
            assert text in parted
        html = browser.response.text
        assert "<del>bill</del>" in html
        assert "<ins>refund</ins>" in html
        states = [given["class"] for _, given in page.tags if given.get("class", "").startswith("state ")]
        assert states == ["state idle"] * 2, "they wait for a message, and for nobody's decision"
        page = await browser.open(f"/compare?left={fork.id}")
        assert dict(browser.response.url.params) == {"left": origin.id, "right": fork.id}, "a fork alone has an origin"
        page = await browser.open(f"/compare?left={fork.id}&right={origin.id}")
        assert "A is a fork of B" in page.text


async def test_unequal_empty_and_equal_sides(engine: Engine) -> None:
    async with two_runs(engine) as (client, opened, origin, _):
        browser = opened.browse()
        page = await browser.open("/compare")
        assert "Two runs side by side" in page.text
        page = await browser.open(f"/compare?left={origin.id}")
        assert "Which run should it be compared with?" in page.text
        page = await browser.open(f"/compare?left={origin.id}&right={origin.id}")
        assert "compared with itself" in page.text
        empty = await client.start("desk", None, mode="session")
        page = await browser.open(f"/compare?left={origin.id}&right={empty.id}")
        assert "nothing in common" in page.text
        assert page.text.count("Nothing more") == 1
        page = await browser.open(
            f"/compare?left={empty.id}&right={(await client.start('desk', None, mode='session')).id}"
        )
        assert "Neither run has a message yet" in page.text
        twin = await client.start("desk", "Where is it?")
        await twin.result()
        page = await browser.open(f"/compare?left={origin.id}&right={twin.id}&steps=1")
        assert "Nothing more" in page.text
        assert "1 of 2 steps: show more" in page.text
        other = await client.start("desk", "Where is it?")
        await other.result()
        page = await browser.open(f"/compare?left={twin.id}&right={other.id}")
        assert "They do not differ: 4 messages" in page.text


async def test_what_each_side_cost(engine: Engine) -> None:
    async with two_runs(engine) as (client, opened, origin, _):
        ids = []
        for words, cost in (("Short", 0.02), ("A longer one", 0.05)):
            usage = Usage(input_tokens=100, output_tokens=len(words))
            reply = Message.assistant(words).model_copy(update={"usage": usage, "cost_usd": cost, "model": "m-1"})
            ids.append((await client.start("desk", None, mode="session", history=[Message.user("Hi"), reply])).id)
        page = await opened.browse().open(f"/compare?left={ids[0]}&right={ids[1]}")
        cells = "".join(page.text.split())
        assert "Cost$0.0200$0.0500+$0.0300+150%" in cells
        assert "Tokens105112+7+7%" in cells
        assert "The same until here: 1 message, 0 iterations" in page.text
        page = await opened.browse().open(f"/compare?left={ids[0]}&right={origin.id}")
        assert "Cost$0.0200unknown" in "".join(page.text.split()), "a price that is unknown is not left out"


async def test_runs_that_a_visitor_may_not_see(engine: Engine) -> None:
    async with two_runs(engine) as (client, opened, origin, fork):
        own = await client.start("desk", "Mine", tenant="other")
        await own.result()
        ada, other = opened.browse(), opened.browse("other")
        for query in (
            f"left={own.id}&right={origin.id}", f"left={origin.id}&right={own.id}", f"left={fork.id}", "left=x&right=y",
        ):  # fmt: skip
            page = await other.open(f"/compare?{query}")
            assert other.response.status_code == 404, query
            assert "bill" not in page.text
        await other.open(f"/compare?left={own.id}&right={own.id}")
        assert other.response.status_code == 200
        await ada.open(f"/compare?left={origin.id}&right=nothing")
        assert ada.response.status_code == 404


async def test_hostile_texts_side_by_side(engine: Engine) -> None:
    @tool
    def show(text: str) -> str:
        """Show."""
        return TEXT

    def answer(request: Any) -> Any:
        done = request.messages[-1].role == "tool"
        return f"{TEXT} {request.messages[0].text[-1]}" if done else [TEXT, call("show", text=TEXT)]

    async with (
        engine.served(Agent("desk", ScriptedProvider(answer), tools=[show])) as client,
        console(client) as opened,
    ):
        runs = [await client.start("desk", f"{TEXT} {number}", by="<b>eve</b>") for number in (1, 2)]
        for run in runs:
            await run.result()
        browser = opened.browse()
        for query in (f"left={runs[0].id}&right={runs[1].id}", f"left={runs[0].id}&right={runs[0].id}"):
            page = await browser.open(f"/compare?{query}")
            check_page(page, browser.response.text)
            assert "alert(1)" in page.text
        page = await browser.open("/compare?left=%3Cscript%3E&right=%E2%80%AE")
        check_page(page, browser.response.text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a b c", "a x c", ("a <del>b </del>c", "a <ins>x </ins>c")),
        ("see <b>", "see <i>", ("see &lt;<del>b</del>&gt;", "see &lt;<ins>i</ins>&gt;")),
        ("one two three", "eins zwei drei vier", None),
        ("", "a", None),
        ("a " * 5000, "a " * 4999, None),
    ],
)
def test_words_that_differ_are_marked(old: str, new: str, expected: tuple[str, str] | None) -> None:
    assert mark_changes(old, new) == expected


async def test_the_comparison_has_the_figures_of_the_runs_own_pages(engine: Engine) -> None:
    helper = Agent("helper", ScriptedProvider(lambda _: "I looked."))
    boss = Agent("boss", script(call("call_helper", task="Look"), "Done."), subagents=[helper])
    async with served(engine, boss, helper) as (client, opened):
        runs = [await client.start("boss", f"Go {n}.", id=f"team-{n}") for n in range(2)]
        for run in runs:
            await run.result()
        browser = opened.browse()
        own = []
        for run in runs:
            page = await browser.open(f"/runs/{run.id}")
            found = re.search(r"Tokens (\d+) · \d+ in, \d+ out · with subagents", page.squeeze())
            assert found is not None
            own.append(found[1])
        page = await browser.open(f"/compare?left={runs[0].id}&right={runs[1].id}")
        whole = page.squeeze().partition("The whole runs, tokens and cost with their subagents")[2]
        assert re.search(r"Tokens (\d+) (\d+)", whole).groups() == tuple(own)  # type: ignore[union-attr]  # else it fails
        usage = (await browser.http.get("/v1/usage?group=run")).json()
        assert sorted(row["input_tokens"] + row["output_tokens"] for row in usage["data"]) == sorted(map(int, own))
