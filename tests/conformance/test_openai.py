"""OpenAI's API, judged by the official SDK for Node: its streams, its loop of tools, its errors."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.docs.pages import Page
from tests.support import npm
from tests.support.engine import Engine
from tests.support.web import serve

FOLDER = Path(__file__).with_name("openai_sdk")
ROOT = FOLDER.parents[2]
TEXT = "One two three four."


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs, with their packages."""
    modules = npm.packages(FOLDER, "OpenAI's API against the official SDK for Node")
    return npm.copy(FOLDER, modules, tmp_path_factory.mktemp("openai-sdk") / "programs")


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(needs_approval=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def support(request: ModelRequest) -> Any:
    """What the agent of the page says."""
    last = request.messages[-1]
    if last.role == "tool":
        return "It is refunded."
    return call("refund", order=7) if "Refund" in last.text else "Hello!"


def build_agents() -> list[Agent]:
    return [
        Agent("talker", ScriptedProvider(lambda _: TEXT)),
        Agent("forecaster", ScriptedProvider([call("weather", place="Rome"), "Sun."]), client_tools=True),
        Agent("support", ScriptedProvider(support), tools=[refund]),
        Agent("payer", ScriptedProvider([["Paying.", call("pay", amount=3)], "Paid."]), tools=[pay]),
    ]


async def run(folder: Path, url: str, *command: str) -> str:
    """Run a program, and return what it prints."""
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "BASE_URL": f"{url}/openai/v1", "URL": url, "TOKEN": "ada"}
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=env, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    return out.decode()


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[str]:
    """A service with the agents; its URL."""
    async with engine.served(*build_agents()) as client, serve(client) as service:
        yield service.url


@pytest.mark.node
async def test_the_sdks_helpers_end_with_what_the_agents_said(engine: Engine, programs: Path) -> None:
    async with served(engine) as url:

        async def play(scenario: str) -> Any:
            return json.loads(await run(programs, url, "node", "client.mjs", scenario))

        chat = await play("chat")
        assert (chat["text"], chat["content"]) == (TEXT, TEXT)
        assert chat["tokens"] > 0
        assert await play("tools") == {"content": "Sun.", "asked": ["Rome"]}
        paid = await play("responses")
        assert (paid["name"], paid["before"], paid["text"]) == ("pay", "Paying.", "Paid.")
        assert paid["kinds"] == ["mcp_call", "message"]
        assert await play("background") == {"text": TEXT, "whole": TEXT}
        assert await play("errors") == [
            ["NotFoundError", "model_not_found", "model"],
            ["BadRequestError", "missing", "input"],
            ["NotFoundError", "response_not_found", None],
            ["AuthenticationError", "unauthorized", None],
            ["BadRequestError", "unsupported_parameter", "n"],
        ]


@pytest.mark.node
async def test_the_clients_of_the_page_run(engine: Engine, programs: Path) -> None:
    page = Page(ROOT / "docs/how-to/openai-api.md")
    blocks = {block.language: block for block in page.blocks if block.mark.startswith("elsewhere")}
    assert blocks.keys() == {"sh", "ts"}
    (programs / "page.mjs").write_text(blocks["ts"].body)  # types are inferred: it is JavaScript, too
    async with served(engine) as url:
        said = await run(programs, url, "sh", "-c", blocks["sh"].body)
        assert said.rstrip().endswith("data: [DONE]")
        assert '"content":"Hello!"' in said
        paid = await run(programs, url, "node", "page.mjs")
        assert paid.splitlines() == ['approving refund {"order":7}', "It is refunded."]
