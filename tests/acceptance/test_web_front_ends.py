"""Replicas and workers are killed in the middle of a reply and of an approval; clients that others wrote go on.

Both ends are real processes, ended by SIGKILL: ``perdure serve``, and a worker. What the client ends with is the whole
transcript, and what was approved has happened once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import Engine
from tests.support.front_ends import (
    FrontEnd,
    front_end,
    list_agui_messages,
    list_chat_messages,
    read_agui_messages,
    read_chat_messages,
)
from tests.support.replicas import replicas_of

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.node]


async def check_agui(engine: Engine, thread: str, held: dict[str, Any]) -> None:
    assert (held["failure"], held["warnings"]) == (None, [])
    transcript = await (await engine.client()).run(thread).transcript(full=True)
    assert read_agui_messages(held["messages"]) == list_agui_messages(transcript)


async def test_agui_outlives_the_replica_and_the_worker(engine: Engine, tmp_path: Path) -> None:
    go, thread = tmp_path / "go", f"reply-{engine.task_queue}"
    worker = await engine.process("streaming", TEST_GO=str(go))
    async with replicas_of(engine) as replicas, front_end("agui.mjs", tmp_path) as agui:
        url = f"{await replicas.start()}/agui/slow"
        for key in ("t1", "t2"):
            await agui.ask("open", key=key, url=url, threadId=thread, headers={})
        await agui.ask("add", key="t1", message={"id": "u1", "role": "user", "content": "hi"})
        running = agui.begin("run", key="t1", runId="r1")
        await agui.ask("until", key="t1", type="TEXT_MESSAGE_CONTENT")
        watching = agui.begin("connect", key="t2", runId="r1")
        await agui.ask("until", key="t2", type="TEXT_MESSAGE_START")
        await asyncio.gather(replicas.kill(), worker.kill())
        for cut in (await running, await watching):
            assert cut["failure"] is not None
        url = f"{await replicas.start()}/agui/slow"
        for key in ("t1", "t2"):
            await agui.ask("move", key=key, url=url)
        running = agui.begin("run", key="t1", runId="r1")
        watching = agui.begin("connect", key="t2")  # it does not know the run
        for key in ("t1", "t2"):  # the store has what no worker can say
            await agui.ask("until", key=key, type="RUN_STARTED", count=2)
        go.touch()
        await engine.process("streaming", TEST_GO=str(go))
        for ended in (await running, await watching):
            await check_agui(engine, thread, ended)
            assert ended["messages"][-1]["content"] == "Half whole."


async def test_an_approval_of_agui_outlives_the_replica_and_the_worker(engine: Engine, tmp_path: Path) -> None:
    thread = f"approval-{engine.task_queue}"
    worker = await engine.process("approving")
    async with replicas_of(engine) as replicas, front_end("agui.mjs", tmp_path) as agui:
        url = f"{await replicas.start()}/agui/paying"
        await agui.ask("open", key="t1", url=url, threadId=thread, headers={})
        await agui.ask("add", key="t1", message={"id": "u1", "role": "user", "content": "ada bob"})
        asked = await agui.ask("run", key="t1")
        first, second = asked["interrupts"]
        decisions = [
            {"interruptId": first["id"], "status": "resolved", "payload": {"approved": True}},
            {"interruptId": second["id"], "status": "cancelled"},
        ]
        deciding = agui.begin("run", key="t1", resume=decisions)
        await agui.ask("until", key="t1", type="RUN_STARTED", count=2)
        await asyncio.gather(replicas.kill(), worker.kill())
        cut = await deciding
        if cut["failure"] is not None:  # as ever, unless the turn was quicker
            await agui.ask("move", key="t1", url=f"{await replicas.start()}/agui/paying")
            await engine.process("approving")
            cut = await agui.ask("run", key="t1", resume=decisions)
        await check_agui(engine, thread, cut)
        assert cut["messages"][-1]["content"] == "Done."
    assert len(engine.ledger.entries("pay")) == 1


async def check_chat(engine: Engine, chat_id: str, held: dict[str, Any]) -> None:
    assert (held["status"], held["warnings"]) == ("ready", [])
    transcript = await (await engine.client()).run(chat_id).transcript(full=True)
    assert read_chat_messages(held["messages"]) == list_chat_messages(transcript)


async def open_chat(chat: FrontEnd, url: str, agent: str, chat_id: str) -> None:
    await chat.ask("open", key="c1", sdk=7, api=f"{url}/ui/{agent}", chatId=chat_id, headers={}, ended=True)


async def test_a_chat_outlives_the_replica_and_the_worker(engine: Engine, tmp_path: Path) -> None:
    go, chat_id = tmp_path / "go", f"reply-{engine.task_queue}"
    worker = await engine.process("streaming", TEST_GO=str(go))
    async with replicas_of(engine) as replicas, front_end("chat.mjs", tmp_path) as chat:
        await open_chat(chat, await replicas.start(), "slow", chat_id)
        sending = chat.begin("send", key="c1", text="hi")
        await chat.ask("until", key="c1", text="Half ")
        await asyncio.gather(replicas.kill(), worker.kill())
        assert (await sending)["status"] == "error"
        await chat.ask("move", key="c1", api=f"{await replicas.start()}/ui/slow")
        resuming = chat.begin("resume", key="c1")
        go.touch()
        await engine.process("streaming", TEST_GO=str(go))
        await check_chat(engine, chat_id, await resuming)


async def test_an_approval_of_a_chat_outlives_the_replica_and_the_worker(engine: Engine, tmp_path: Path) -> None:
    chat_id = f"approval-{engine.task_queue}"
    worker = await engine.process("approving")
    async with replicas_of(engine) as replicas, front_end("chat.mjs", tmp_path) as chat:
        await open_chat(chat, await replicas.start(), "paying", chat_id)
        asked = await chat.ask("send", key="c1", text="ada bob")
        first, second = [part["approval"]["id"] for part in asked["messages"][-1]["parts"] if "approval" in part]
        await chat.ask("approve", key="c1", approvalId=first, approved=True, sends=False)
        deciding = chat.begin("approve", key="c1", approvalId=second, approved=True)
        await asyncio.gather(replicas.kill(), worker.kill())
        cut = await deciding
        await chat.ask("move", key="c1", api=f"{await replicas.start()}/ui/paying")
        await engine.process("approving")
        assert cut["status"] == "error"
        ended = await chat.ask("submit", key="c1")
        await check_chat(engine, chat_id, ended)
    assert sorted(entry["key"] for entry in engine.ledger.entries("pay")) == ["ada", "bob"]
