"""Calls whose arguments come in pieces, from the wire of each provider to the official clients of front ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from perdure import Agent, tool
from perdure.web.app import build_web
from perdure.web.vercel import vercel_routes
from tests.conformance.test_openai import programs as programs
from tests.conformance.test_openai import run
from tests.conformance.wire_streams import ANSWER, FORMATS, RAW, TEXT, replayed
from tests.support.engine import Engine
from tests.support.front_ends import (
    FrontEnd,
    list_agui_messages,
    list_chat_messages,
    read_agui_messages,
    read_chat_messages,
)
from tests.support.scripts import Gate
from tests.support.web import ADA, NamedCallers, serve

pytestmark = [pytest.mark.node, pytest.mark.server, pytest.mark.parametrize("format", FORMATS)]
HEADERS = {"Authorization": "Bearer ada"}
IN_PIECES = [name for name in FORMATS if name != "google"]


@tool
async def look(invoice_id: str, lines: list[Any], note: str) -> str:
    """Look at an invoice."""
    return f"{invoice_id}: {len(lines)} {note}"


async def test_agui_gets_the_last_piece_and_no_snapshot(engine: Engine, agui: FrontEnd, format: str) -> None:
    gate = Gate()
    async with replayed(format, gate) as model:
        agent = Agent("helper", model, tools=[look])
        async with engine.served(agent) as client, serve(client) as service:
            name = client.task_queue
            await agui.ask("open", key="t", url=f"{service.url}/agui/helper", threadId=name, headers=HEADERS)
            await agui.ask("add", key="t", message={"id": "u1", "role": "user", "content": "Paid?"})
            running = agui.begin("run", key="t")
            seen = "TOOL_CALL_ARGS" if format in IN_PIECES else "TEXT_MESSAGE_CONTENT"
            await agui.ask("until", key="t", type=seen)
            gate.open()
            ended = await running
            assert (ended["failure"], ended["warnings"]) == (None, [])
            transcript = await client.run(name).transcript(full=True)
            assert read_agui_messages(ended["messages"]) == list_agui_messages(transcript)
    kinds = [event["type"] for event in ended["events"]]
    assert "MESSAGES_SNAPSHOT" not in kinds
    assert (kinds.count("TOOL_CALL_START"), kinds.count("TOOL_CALL_END")) == (1, 1)
    before_end = ended["events"][: kinds.index("TOOL_CALL_END")]
    written = "".join(event["delta"] for event in before_end if event["type"] == "TOOL_CALL_ARGS")
    assert json.loads(written) == json.loads(RAW)
    said = "".join(event["delta"] for event in ended["events"] if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert said == TEXT + ANSWER


@pytest.mark.parametrize("sdk", [6, 7])
async def test_a_chat_resets_no_step(engine: Engine, chat: FrontEnd, format: str, sdk: Any) -> None:
    gate = Gate()
    async with replayed(format, gate) as model:
        agent = Agent("helper", model, tools=[look])
        async with engine.served(agent) as client:
            app = Starlette(routes=vercel_routes(build_web(client, authenticator=NamedCallers(ADA)), sdk=sdk))
            async with serve(client, app=app) as service:
                api, name = f"{service.url}/ui/helper", client.task_queue
                await chat.ask("open", key="c", sdk=sdk, api=api, chatId=name, headers=HEADERS)
                sending = chat.begin("send", key="c", text="Paid?")
                await chat.ask("until", key="c", text="input-streaming" if format in IN_PIECES else "then answer.")
                gate.open()
                ended = await sending
            assert (ended["status"], ended["warnings"], ended["data"]) == ("ready", [], [])
            transcript = await client.run(name).transcript(full=True)
            assert read_chat_messages(ended["messages"]) == list_chat_messages(transcript)
    assert "reset-step" not in ended["chunks"]
    assert ended["chunks"].count("text-start") == 2
    [shown] = [part for part in ended["messages"][-1]["parts"] if part["type"] == "dynamic-tool"]
    assert (shown["state"], shown["input"]) == ("output-available", json.loads(RAW))


@pytest.mark.parametrize("scenario", ["pieces", "response_pieces"])
async def test_the_openai_sdk_gets_each_text_once(engine: Engine, programs: Path, format: str, scenario: str) -> None:
    gate = Gate()
    gate.open()
    async with replayed(format, gate) as model:
        agent = Agent("helper", model, client_tools=True)
        async with engine.served(agent) as client, serve(client) as service:
            printed = await run(programs, service.url, "node", "client.mjs", scenario)
    whole = json.loads(RAW)
    assert json.loads(printed) == {"text": TEXT, "content": TEXT, "written": whole, "arguments": whole}
