"""The page of a run: transcript, waterfall, subagents, what is live, and actions, by httpx."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import BaseModel

from perdure import Agent, Approval, Client, File, Limits, tool
from perdure.client.visibility import read_pending_memo
from perdure.console.event_window import read_window
from perdure.console.texts import render_time
from perdure.console.transcript import CallBlock, ReplyBlock, Transcript
from perdure.console.waterfall import build_waterfall
from perdure.errors import RateLimitError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.events import ModelCompleted, ModelDelta, ModelRetracted, ModelStarted, RunEvent, TurnEvent
from perdure.types.messages import TextPart, ThinkingPart
from tests.console.test_access import wait_for_waits
from tests.support.engine import Engine
from tests.support.pages import Console, Html, console
from tests.support.wait import eventually
from tests.support.web import make_caller

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cf500f0003860180a5c1e7a60000000049454e44ae426082"
)


@asynccontextmanager
async def served(engine: Engine, *agents: Agent[Any, Any], **options: Any) -> AsyncIterator[tuple[Client, Console]]:
    viewer = make_caller("eve", "viewer")
    async with engine.served(*agents) as client, console(client, viewer, **options) as opened:
        yield client, opened


def script(*replies: Any) -> ScriptedProvider:
    """Replies by the number of replies in the conversation."""

    def answer(request: Any) -> Any:
        count = sum(message.role == "assistant" for message in request.messages)
        return replies[min(count, len(replies) - 1)]

    return ScriptedProvider(answer)


@tool
def photo() -> Any:
    """A photo."""
    return ["the photo", File(PNG, "image/png", "cat.png")]


@tool
def fail() -> str:
    """Fails."""
    raise ValueError("the warehouse is closed")


async def test_the_transcript_and_what_it_cost(engine: Engine) -> None:
    helper = Agent("helper", script("**helped**"))
    agent = Agent(
        "worker",
        script(call("photo"), call("fail"), call("call_helper", task="Help"), "All *done*"),
        tools=[photo, fail],
        subagents=[helper],
        limits=Limits(tokens=9000),
    )
    async with served(engine, agent, helper) as (client, opened):
        run = await client.start("worker", "Do **it**", by="zoe", mode="session")
        await run.turn().result()
        browser = opened.browse()
        page = await browser.open(f"/runs/{run.id}")
        html = browser.response.text
        assert "<strong>it</strong>" in html
        assert "<em>done</em>" in html
        for text in ("zoe", "photo", "the warehouse is closed", "call_helper", "Turn completed", "Tokens per run"):
            assert text in page.text
        [image] = [given for tag, given in page.tags if tag == "img"]
        answer = await browser.http.get(image["src"])
        assert (answer.status_code, answer.content) == (200, PNG)
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        [child] = [run.id for run in await run.children()]
        assert any(given.get("href") == f"/console/runs/{quote(child, safe='')}" for _, given in page.tags)
        classes = [given.get("class", "") for tag, given in page.tags if tag == "rect"]
        bars = {name.split()[0] for name in classes if "bar-" in name}
        assert bars == {"bar-model", "bar-tool", "bar-child"}
        page = await browser.open(f"/runs/{child.replace('/', '%2F')}")
        assert "helped" in page.text
        assert [given["href"] for tag, given in page.tags if tag == "a" and given.get("href", "").endswith(run.id)]


async def test_long_runs_load_backwards_and_each_place_has_an_address(engine: Engine) -> None:
    agent = Agent("talker", ScriptedProvider(lambda request: f"reply {len(request.messages)}"))
    async with served(engine, agent) as (client, opened):
        run = await client.start("talker", "message 0", mode="session")
        await run.turn().result()
        for number in range(1, 60):
            await (await run.send(f"message {number}")).result()
        browser = opened.browse()
        page = await browser.open(f"/runs/{run.id}")
        size, seen = len(browser.response.text), [page.text]
        assert "message 59" in page.text
        assert "message 1\n" not in page.text
        while links := [given["href"] for _, given in page.tags if "data-earlier" in given]:
            page = await browser.open(links[0].removeprefix("/console"))
            seen.append(page.text)
            assert len(browser.response.text) < size * 1.5
            assert "To the end of the run" in page.text
        shown = re.findall(r"message \d+(?=\n)", "".join(seen))
        assert sorted(set(shown)) == sorted({f"message {number}" for number in range(60)})
        assert sorted(shown) == sorted(set(shown)), "each once"
        [address] = {
            given["href"]
            for (tag, given), (_, before) in zip(page.tags[1:], page.tags, strict=False)
            if given.get("class") == "at" and "message 3" in str(before)
        } or {f"/console/runs/{run.id}?at=12#e12"}
        page = await browser.open(address.removeprefix("/console"))
        assert any(given.get("id") == "e12" for _, given in page.tags)


async def test_live_blocks_and_a_reader_that_was_cut_off(engine: Engine) -> None:
    go = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "waited"

    agent = Agent("worker", script([call("wait")], "The **end**"), tools=[wait])
    async with served(engine, agent) as (client, opened):
        run = await client.start("worker", "Go")
        browser = opened.browse()

        async def has_call() -> bool:
            return "running" in (await browser.open(f"/runs/{run.id}")).text

        await eventually(has_call)
        [live] = [given["data-live"] for _, given in browser.page.tags if given.get("data-live")]
        blocks: dict[str, str] = {}
        last = 0
        async with browser.http.stream("GET", live, headers={"accept": "text/event-stream"}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            go.set()
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    last = int(line[4:])
                if line.startswith("data: "):
                    blocks |= {block["key"]: block["html"] for block in json.loads(line[6:]).get("blocks", ())}
                if any("<strong>end</strong>" in html for html in blocks.values()):
                    break
        [waited] = [html for key, html in blocks.items() if key.startswith("c-")]
        assert "waited" in waited
        await run.result()
        again = await browser.http.get(live, headers={"accept": "text/event-stream", "last-event-id": str(last)})
        assert "Run completed" in again.text
        assert f"\nid: {last}\n" not in again.text
        numbers = [int(number) for number in re.findall(r"^id: (\d+)$", again.text, re.MULTILINE)]
        over = await browser.http.get(live, headers={"accept": "text/event-stream", "last-event-id": str(numbers[-1])})
        assert over.status_code == 204


def test_a_model_has_one_name_before_and_after_its_reply() -> None:
    at: Any = {"context_id": "c", "task_id": "t", "iteration": 1}
    transcript = Transcript()
    transcript.add(ModelStarted(seq=1, model="openai:gpt-5-mini", **at))
    [reply] = transcript.blocks.values()
    assert isinstance(reply, ReplyBlock)
    assert reply.model == "openai:gpt-5-mini"
    transcript.add(ModelCompleted(seq=2, model="gpt-5-mini", text="Hi.", **at))
    assert reply.model == "openai:gpt-5-mini"
    transcript.add(ModelCompleted(seq=3, model="gpt-5-nano", text="Hi.", **at | {"iteration": 2}))
    assert [block.model for block in transcript.blocks.values() if isinstance(block, ReplyBlock)][-1] == "gpt-5-nano"


def test_a_reply_as_it_is_written_retracted_and_complete() -> None:
    transcript = Transcript()
    at = "2026-01-01T00:00:0{}.000000+00:00"
    transcript.add(ModelStarted(seq=1, task_id="t", iteration=1, model="x:y", at=at.format(1)))
    transcript.add(ModelDelta(seq=2, task_id="t", iteration=1, text="Hel", offset=0, at=at.format(2)))
    transcript.add(ModelDelta(seq=3, task_id="t", iteration=1, text="Hel", offset=0))
    transcript.add(ModelDelta(seq=4, task_id="t", iteration=1, text="llo", offset=2))
    [first] = transcript.blocks.values()
    assert isinstance(first, ReplyBlock)
    assert (first.text, first.state) == ("Hello", "writing"), "a piece that is known counts once"
    transcript.add(ModelRetracted(seq=5, task_id="t", iteration=1, retracts=((2, 4),), reason="Lost", at=at.format(2)))
    assert first.state == "retracted"
    transcript.add(ModelStarted(seq=6, task_id="t", iteration=1, attempt=2, at=at.format(3)))
    transcript.add(ModelDelta(seq=9, task_id="t", iteration=1, text="beginning is lost", offset=5))
    second = transcript.open_reply
    assert second is not None
    assert (second.key != first.key, second.text) == (True, "")
    transcript.add(ModelCompleted(seq=10, task_id="t", iteration=1, text="Hi", at=at.format(5)))
    assert transcript.open_reply is None
    spans, seconds = build_waterfall(transcript, at.format(9))
    assert seconds == 4
    assert [(span.kind, span.is_bad) for span in spans] == [("model", True), ("model", False)]


def test_the_waterfall_of_a_run_that_has_ended_ends_with_it() -> None:
    transcript, at = Transcript(), "2026-01-01T00:00:0{}.000000+00:00"
    for attempt in (1, 2):
        transcript.add(ModelStarted(seq=attempt, task_id="t", iteration=1, attempt=attempt, at=at.format(attempt)))
    spans, seconds = build_waterfall(transcript, at.format(9))
    assert (seconds, [span.is_open for span in spans]) == (8, [True]), "from its first attempt until now"
    assert build_waterfall(transcript, at.format(9), at.format(4))[1] == 3, "a page without the event of the end"
    transcript.add(TurnEvent(seq=3, task_id="t", state="failed", at=at.format(3)))
    transcript.add(RunEvent(seq=4, state="failed", at=at.format(3)))
    spans, seconds = build_waterfall(transcript, at.format(9))
    assert (seconds, [span.is_open for span in spans]) == (2, [False])
    [reply] = [block for block in transcript.blocks.values() if isinstance(block, ReplyBlock)]
    assert reply.state == "unanswered", "the model is not waited for"


async def test_actions_are_those_of_the_api_and_name_who_acts(engine: Engine) -> None:
    agent = Agent("worker", ScriptedProvider(lambda _: "hello"), limits=Limits(tokens=9000))
    async with served(engine, agent) as (client, opened):
        run = await client.start("worker", "Go", mode="session")
        await run.turn().result()
        browser = opened.browse()

        async def act(action: str, **fields: str) -> str:
            page = await browser.open(f"/runs/{run.id}")
            await browser.send(page.find_form(action=action), **fields)
            assert browser.response.status_code == 200, browser.page.text
            return browser.page.text

        page = await browser.open(f"/runs/{run.id}")
        form = page.find_form(action="message")
        await browser.send(form, text="Once")
        await browser.send(form, text="Once")
        await run.turn().result()
        said = [message.text for message in await run.transcript() if message.role == "user"]
        assert said == ["Go", "Once"], "a button that was pressed twice sends one message"
        await act("limit", limit="run.tokens", value="20000")

        async def is_raised() -> bool:
            return any(limit.allowed == 20000 for limit in (await run.status()).limits)

        await eventually(is_raised)
        await act("pause", text="tea")

        async def is_paused() -> bool:
            return (await run.status()).state == "paused"

        await eventually(is_paused)
        assert "tea" in (await browser.open(f"/runs/{run.id}")).text
        await act("resume")
        text = await act("fork", at="1", text="Otherwise")
        assert browser.response.url.path != f"/console/runs/{run.id}"
        assert "worker" in text
        fork = client.run(browser.response.url.path.rpartition("/")[2])
        await fork.turn().result()
        page = await browser.open(f"/runs/{fork.id}")
        assert "2 earlier messages" in page.text
        await act("cancel")

        async def is_over() -> bool:
            return (await run.status()).state == "cancelled"

        await eventually(is_over)
        rows = await (await client.store()).list_audit(subject=run.id)
        verbs = {(row.by, row.verb) for row in rows}
        assert verbs >= {("ada", verb) for verb in ("send", "resume", "pause", "fork", "cancel")}


async def test_a_viewer_sees_no_actions_and_may_not_act(engine: Engine) -> None:
    agent = Agent("worker", ScriptedProvider(lambda _: "hello"))
    async with served(engine, agent) as (client, opened):
        run = await client.start("worker", "Go", mode="session")
        await run.turn().result()
        reader, ada = opened.browse("eve"), opened.browse()
        page = await reader.open(f"/runs/{run.id}")
        assert not [form for form in page.forms if form.method == "post"]
        form = (await ada.open(f"/runs/{run.id}")).find_form(action="cancel")
        await reader.open("/runs")
        await reader.send(form)
        assert reader.response.status_code == 403
        assert (await run.status()).state == "idle"


async def test_exports(engine: Engine) -> None:
    agent = Agent("worker", ScriptedProvider(lambda _: "hello"))
    async with served(engine, agent) as (client, opened):
        run = await client.start("worker", "Go")
        await run.result()
        browser = opened.browse()
        events = await browser.http.get(f"/console/runs/{run.id}/export/events")
        lines = [json.loads(line) for line in events.text.splitlines()]
        assert [line["type"] for line in lines][:2] == ["run", "turn"]
        assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
        messages = await browser.http.get(f"/console/runs/{run.id}/export/messages")
        assert [json.loads(line)["role"] for line in messages.text.splitlines()] == ["user", "assistant"]
        for answer in (events, messages):
            assert answer.headers["content-disposition"].startswith("attachment")


async def test_a_window_begins_with_a_whole_block(engine: Engine) -> None:
    agent = Agent("worker", script([call("photo"), call("photo")], [call("photo")], "end"), tools=[photo])
    async with served(engine, agent) as (client, _):
        run = await client.start("worker", "Go")
        await run.result()
        store = await client.store()
        window = await read_window(store, run.id, size=4)
        assert window.events[0].type in ("message.injected", "model.started", "turn")
        assert window.first > 0
        assert not window.has_later
        before = await read_window(store, run.id, before=window.first + 1)
        assert [event.seq for event in before.events] == list(range(1, window.first + 1))
        assert before.has_later
        assert before.first == 0
        blocks = Transcript().add_all([*before.events, *window.events]).blocks.values()
        assert all(block.state == "done" for block in blocks if isinstance(block, CallBlock))


@tool(needs_approval=Approval(expires="45m"))
def pay(amount: int = 3) -> str:
    """Pay."""
    return "paid"


def read_pinned(page: Html) -> tuple[str, list[str]]:
    """What stands at the top of a run that waits, and the calls that it leads to."""
    text = page.text.partition("Waits for")[2].partition("Tokens")[0]
    hrefs = (given.get("href", "") for _, given in page.tags if given.get("class", "").startswith("button small"))
    return " ".join(f"Waits for{text}".replace("Waits", " Waits").split()), [
        href for href in hrefs if "/inbox/" in href
    ]


async def test_what_waits_is_pinned_also_what_waits_in_a_subagent(engine: Engine) -> None:
    payer = Agent("payer", script([call("pay"), call("pay")], "done"), tools=[pay])
    desk = Agent("desk", script(call("call_payer", task="Pay"), "done"), subagents=[payer])
    limited = make_caller("lim", "viewer", agents=("desk",))
    async with served(engine, payer, desk) as (client, opened), console(client, limited) as second:
        own, above = await client.start("payer", "Go"), await client.start("desk", "Go")
        await wait_for_waits(client, 4)
        browser = opened.browse()
        text, links = read_pinned(await browser.open(f"/runs/{own.id}"))
        assert text.startswith("Waits for approval: pay · denied in 44 min Decide pay Waits for approval: pay")
        assert len(links) == 2
        page = await browser.open(links[0].removeprefix("/console"))
        assert "Approve pay?" in page.text
        text, links = read_pinned(await browser.open(f"/runs/{above.id}"))
        assert text.startswith("Waits for approval: pay in payer · deadline in 44 min Decide pay")
        assert [quote(f"{above.id}/", safe="") in link for link in links] == [True, True]
        assert "Approve pay?" in (await browser.open(links[1].removeprefix("/console"))).text
        page = await opened.browse("eve").open(f"/runs/{own.id}")
        assert "Look pay" in " ".join(page.text.split())
        page = await second.browse("lim").open(f"/runs/{above.id}")
        assert "Waits for approval" not in page.text, "of the subagent's agent it may see nothing"
        await own.cancel()
        await eventually(lambda: _is_closed(own))
        assert read_pinned(await browser.open(f"/runs/{own.id}"))[1] == []


async def _is_closed(run: Any) -> bool:
    return (await run.status()).state == "cancelled"


async def test_a_standing_approval_is_shown_and_revoked(engine: Engine) -> None:
    agent = Agent("payer", script([call("pay")], [call("pay")], "done"), tools=[pay])
    async with served(engine, agent) as (client, opened):
        run = await client.start("payer", "Go", mode="session")
        await wait_for_waits(client)
        [wait] = (await client.list_waits()).waits
        await run.approve(wait.call_id, by="bob", always=True, hash=wait.hash)
        await run.turn().result()
        browser, reader = opened.browse(), opened.browse("eve")
        page = await browser.open(f"/runs/{run.id}")
        assert "Approved for the rest of this conversation" in page.text
        assert "by bob" in page.text
        form = page.find_form(action="revoke")
        page = await reader.open(f"/runs/{run.id}")
        assert "by bob" in page.text
        assert [form for form in page.forms if ("action", "revoke") in form.fields] == []
        token = dict((await reader.open("/runs")).forms[-1].fields)["form_token"]
        await reader.send(form, form_token=token)
        assert (reader.response.status_code, "may not decide" in reader.page.text) == (403, True)
        assert [one.by for one in (await run.status()).standing] == ["bob"]
        page = await browser.send(form)
        assert "Approved for the rest" not in page.text
        assert (await run.status()).standing == ()
        await browser.send(form)  # twice, or after somebody else
        assert (browser.response.status_code, "no standing approval" in browser.page.text) == (400, True)
        audited = [(row.by, row.verb, row.detail, bool(row.refused)) for row in await _list_audit(client, run.id)]
        assert [row for row in audited if row[1] == "revoke"] == [
            ("ada", "revoke", "pay", True),
            ("ada", "revoke", "pay", False),
            ("eve", "revoke", None, True),
        ]
        page = await browser.open(f"/runs/{run.id}")
        await browser.send(page.find_form(action="message"), text="Again")
        await run.turn().result()
        assert "Standing approval of pay revoked" in (await browser.open(f"/runs/{run.id}")).text


async def _list_audit(client: Client, subject: str) -> Any:
    return await (await client.store()).list_audit(subject=subject)


class Typed(BaseModel):
    amount: int
    note: str


class Thinker:
    """A model that thinks before it answers; the second half comes when it is told."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        number = sum(message.role == "assistant" for message in request.messages)
        yield ThinkingDelta(f"Hm {number}. ")
        yield TextDelta("First half, ")
        await self.go.wait()
        yield TextDelta("second half.")
        parts = (ThinkingPart(text=f"Hm {number}. Yes."), TextPart(text="First half, second half."))
        yield Completed(parts, model=request.model)


async def test_thinking_and_half_a_reply_as_it_is_written(engine: Engine) -> None:
    thinker = Thinker()
    async with served(engine, Agent("thinker", thinker)) as (client, opened):
        run = await client.start("thinker", "Go", mode="session")
        browser = opened.browse()

        async def is_writing() -> bool:
            page = await browser.open(f"/runs/{run.id}")
            return "First half, " in page.text and "Hm 0." in page.text

        await eventually(is_writing)
        assert "second half" not in browser.page.text
        [live] = [given["data-live"] for _, given in browser.page.tags if given.get("data-live")]
        pieces, blocks = [], []
        async with browser.http.stream("GET", live, headers={"accept": "text/event-stream"}) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                frame = json.loads(line[6:])
                blocks += frame.get("blocks", [])
                pieces += [frame["text"]] if frame.get("field") == "text" else []
                if not thinker.go.is_set():
                    assert "First half, " in blocks[0]["html"], "what is written so far comes first"
                    thinker.go.set()
                if "Hm 0. Yes." in blocks[-1]["html"]:
                    break
        assert pieces in ([], ["second half."])
        assert blocks[0]["key"] == blocks[-1]["key"]
        await run.turn().result()
        await (await run.send("Again")).result()
        page = await browser.open(f"/runs/{run.id}")
        assert "Hm 0. Yes." in page.text
        assert "Hm 1. Yes." in page.text
        assert [given.get("open") for tag, given in page.tags if given.get("class") == "thinking"] == [None, None]


async def test_long_texts_and_typed_answers_are_shown(engine: Engine) -> None:
    @tool
    def read() -> str:
        """Read."""
        return "long result " * 2_000

    agents = [
        Agent("reader", script([call("read")], "long answer " * 3_000), tools=[read]),
        Agent("typed", script([finish(amount=3, note="typed")]), output=Typed),
    ]
    async with served(engine, *agents) as (client, opened):
        reader, typed = await client.start("reader", "long question " * 2_000), await client.start("typed", "Go")
        await reader.result()
        await typed.result()
        browser = opened.browse()
        page = await browser.open(f"/runs/{reader.id}")
        assert page.text.count("long answer") >= 3_000
        assert page.text.count("long result") >= 2_000
        assert page.text.count("long question") >= 2_000
        page = await browser.open(f"/runs/{typed.id}")
        assert "typed" in [text.strip() for text in page.text.splitlines()]
        assert "not begun" not in page.text


async def test_a_fork_after_any_reply(engine: Engine) -> None:
    agent = Agent("talker", ScriptedProvider(lambda request: f"reply {len(request.messages)}"))
    async with served(engine, agent) as (client, opened):
        run = await client.start("talker", "one", mode="session")
        await run.turn().result()
        for text in ("two", "three"):
            await (await run.send(text)).result()
        browser = opened.browse()
        page = await browser.open(f"/runs/{run.id}")
        links = [given["href"] for _, given in page.tags if given.get("class") == "fork-link"]
        assert len(links) == 3
        page = await browser.open(links[1].removeprefix("/console"))
        form = page.find_form(action="fork")
        await browser.send(form, text="otherwise")
        fork = client.run(browser.response.url.path.rpartition("/")[2])
        await fork.turn().result()
        said = [message.text for message in await fork.transcript() if message.role == "user"]
        assert said == ["one", "two", "otherwise"]
        await browser.send(form, head="0" * 64, text="otherwise", nonce="f" * 32)
        assert browser.response.status_code in (400, 500)
        assert "rewritten since" in browser.page.text or "damaged" in browser.page.text


@pytest.mark.slow
@pytest.mark.server
async def test_without_a_worker_pages_come_at_once_and_say_why(engine: Engine) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("payer", script([call("pay")], "done"), tools=[pay])
    async with engine.served(agent) as client:
        run = await client.start("payer", "Go", mode="session")

        async def has_recorded_the_wait() -> bool:
            return bool(await read_pending_memo(await run.describe()))

        await eventually(has_recorded_the_wait)
    async with console(client) as opened:
        browser = opened.browse()
        page = await browser.open(f"/runs/{run.id}")
        assert "has not answered yet" in page.text
        assert "pay" in page.text
        page = await browser.open(f"/runs/{run.id}?wait=1")
        assert "no worker answers" in page.text
        [wait] = (await client.list_waits()).waits
        page = await browser.open(f"/inbox/{run.id}/{wait.call_id}")
        assert "Approve pay?" in page.text


@pytest.mark.slow
@pytest.mark.server
async def test_a_run_that_is_held_up_says_by_what(engine: Engine) -> None:
    def refuse(_: Any) -> Any:
        raise RateLimitError("Slow down.", retry_after=3600)

    async with served(engine, Agent("worker", ScriptedProvider(refuse))) as (client, opened):
        run = await client.start("worker", "Go", mode="session")
        browser = opened.browse()

        async def says_why() -> bool:
            text = " ".join((await browser.open(f"/runs/{run.id}?wait=1")).text.split())
            return "Held up: perdure.model, attempt 1: RateLimitError: Slow down. (next attempt at 2" in text

        await eventually(says_why)
        assert "running" in browser.page.text


async def test_a_stream_ends_with_the_login(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.web.sse.CHECK_SECONDS", 0.05)
    agent = Agent("worker", ScriptedProvider(lambda _: "hello"))
    async with engine.served(agent) as client, console(client, tokens=True) as opened:
        run = await client.start("worker", "Go", mode="session")
        await run.turn().result()
        token = (await client.tokens.create("ana", role="viewer")).token
        browser, other = opened.browse(None), opened.browse(None)
        page = await browser.open("/runs")
        await browser.send(page.find_form(token=""), token=token)
        other.http.cookies = browser.http.cookies
        live = f"/console/runs/{run.id}/live?after=0"
        async with browser.http.stream("GET", live, headers={"accept": "text/event-stream"}) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            assert await anext(lines)
            page = await other.open("/runs")
            await other.send(page.find_form(to="/logout"))
            async with asyncio.timeout(30):
                async for _ in lines:
                    pass
        again = await browser.http.get(live, headers={"accept": "text/event-stream"}, follow_redirects=False)
        assert again.status_code in (303, 401)


def test_a_clock_of_another_day_has_its_day() -> None:
    assert ">2 Jan 03:04:05<" in render_time("2026-01-02T03:04:05Z", style="clock")
    assert ">03:04:05<" not in render_time("2026-01-02T03:04:05Z", style="clock")
