"""The tutorial, as its reader goes through it: the files and the commands are those of the page.

The approver of the console decides by a command here; a browser drives the page of section 5.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.docs.loopback import ROOT, Loopback, Process, ended, said
from tests.docs.pages import Block, Page
from tests.support import npm
from tests.support.chromium import chromium
from tests.support.ports import find_free_ports
from tests.support.postgres import Databases
from tests.support.wait import eventually

PAGE = Page(ROOT / "docs" / "tutorial.md")
EXAMPLES = ROOT / "examples"
EXAMPLE = EXAMPLES / "55_chat_page"
pytestmark = pytest.mark.server


def find_section(number: int) -> list[Block]:
    """The blocks of a section."""
    headings = [line for line, text in enumerate(PAGE.text.split("\n"), 1) if text.startswith("## ")]
    begin, end = headings[number - 1], [*headings, 10**6][number]
    return [block for block in PAGE.blocks if begin < block.line < end]


def find_file(language: str, words: str) -> str:
    """The block that has these words."""
    (body,) = [block.body for block in PAGE.blocks if block.language == language and words in block.body]
    return body


class Reader:
    """Who follows the tutorial, in a folder of their own."""

    def __init__(self, loopback: Loopback) -> None:
        self.loopback, self.folder = loopback, loopback.folder
        self.env: dict[str, str] = {}
        self.address = ""
        (self.folder / "desk.py").write_text(find_file("python", "desk = Agent("))
        (self.folder / "test_desk.py").write_text(find_file("python", "def test_"))

    async def perdure(self, *words: str) -> str:
        """Run a command to its end; returns what it prints."""
        done = await ended(await self.loopback.spawn("perdure", *words, env=self.env, cwd=self.folder))
        assert done.code == 0, (words, done)
        return done.out

    async def start(self, *words: str) -> Process:
        """Start a command that stays."""
        return await self.loopback.spawn("perdure", *words, env=self.env, cwd=self.folder)

    async def start_worker(self, *words: str) -> Process:
        """Start `perdure worker`, and wait until it says that it serves."""
        worker = await self.start(*words)
        await said(worker.stdout, "^serving desk")
        return worker

    async def serve(self, *words: str) -> None:
        """Start `perdure serve` on a free port, and wait for it."""
        [port] = find_free_ports(1)
        await self.start(*words, "--port", str(port))
        self.address = f"http://127.0.0.1:{port}"

        async def is_ready() -> bool:
            return (await self.loopback.run("curl", "--fail", "--silent", f"{self.address}/readyz")).code == 0

        await eventually(is_ready, what="perdure serve")

    async def waits(self) -> str:
        """Wait for a call in the inbox; returns the list."""

        async def list_approvals() -> str:
            printed = await self.perdure("approvals")
            return printed if "Pay INV" in printed else ""

        return await eventually(list_approvals, what="the call of pay_invoice")


@pytest.fixture
async def reader(loopback: Loopback) -> Reader:
    await loopback.own_namespace()
    return Reader(loopback)


async def test_the_desk_finds_pays_and_survives_its_worker(reader: Reader) -> None:
    [find] = [command for block in find_section(1) for command in block.commands]
    assert "INV-1004: 120.50 EUR, open" in await reader.perdure(*find[1:])

    serve, pay, kill = [list(block.commands) for block in find_section(2)]
    worker = await reader.start_worker(*serve[0][1:])
    ask, _, approve, wait = pay
    await reader.perdure(*ask[1:])
    assert "Pay INV-1004: 120.50 EUR" in await reader.waits()
    await reader.perdure(*approve[1:])
    assert "paid 120.50 EUR for INV-1004" in await reader.perdure(*wait[1:])

    ask, approve, again = kill
    await reader.perdure(*ask[1:])
    await reader.waits()
    await reader.perdure(*approve[1:])

    async def is_paying() -> bool:
        return "tool.started" in await reader.perdure("events", ask[ask.index("--id") + 1], "-o", "jsonl")

    await eventually(is_paying, what="the payment")
    await reader.loopback.kill(worker)
    await reader.start_worker(*again[1:])
    await reader.perdure("wait", ask[ask.index("--id") + 1])
    assert "OutcomeUnknown" in await reader.perdure("show", ask[ask.index("--id") + 1])


async def test_the_tests_of_the_desk_pass(reader: Reader) -> None:
    done = await reader.loopback.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=reader.folder)
    assert done.code == 0, done
    assert re.search(r"^\d passed", done.out, re.MULTILINE)


@asynccontextmanager
async def served_page(reader: Reader, token: str, folder: Path, port: int) -> AsyncIterator[str]:
    """Build the page, and serve it as `vite preview` does; its address."""
    modules = await asyncio.to_thread(npm.packages, EXAMPLE, "the page of the tutorial")
    page = npm.copy(EXAMPLE, modules, folder)
    vite = ["node", "node_modules/vite/bin/vite.js"]
    for command in (["node", "node_modules/typescript/bin/tsc"], [*vite, "build"]):
        built = await asyncio.to_thread(subprocess.run, command, cwd=page, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built
    env = {"PERDURE_URL": reader.address, "PERDURE_TOKEN": token}
    await reader.loopback.spawn(*vite, "preview", "--host", "127.0.0.1", "--port", str(port), env=env, cwd=page)
    yield f"http://127.0.0.1:{port}"


def test_the_page_is_the_one_of_the_examples() -> None:
    assert find_file("ts", "defineConfig") == (EXAMPLE / "vite.config.ts").read_text()
    assert find_file("tsx", "createRoot") == (EXAMPLE / "main.tsx").read_text()


@pytest.mark.node
@pytest.mark.slow
async def test_the_page_asks_and_another_person_decides(reader: Reader, tmp_path: Path) -> None:
    *tokens, serve = [command[1:] for block in find_section(4) for command in block.commands]
    [port] = find_free_ports(1)
    await reader.start_worker("worker", "desk.py")
    page_token, ana = [(await reader.perdure(*words)).strip() for words in tokens]
    await reader.serve(*(word.replace("localhost:5173", f"127.0.0.1:{port}") for word in serve))
    async with (
        served_page(reader, page_token, tmp_path / "page", port) as address,
        chromium(reader.address, "the page of the tutorial") as browser,
    ):
        context = await browser.browser.new_context()
        page = await context.new_page()
        browser.contexts.append(context)
        await page.goto(address)
        await page.get_by_label("Message").fill("Pay INV-1004 with amount 120.50")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("waits for approval").wait_for()
        window = await browser.open("/inbox", name=ana)
        await window.page.get_by_text("Pay INV-1004").first.wait_for()
        [run_id] = re.findall(r"[0-9a-f-]{36}", page.url)
        await reader.perdure("approve", run_id, "--by", "ana")
        await page.get_by_text("paid 120.50 EUR for INV-1004").first.wait_for()
        await page.reload()
        await page.get_by_text("paid 120.50 EUR for INV-1004").first.wait_for()
        await page.get_by_text("Pay INV-1004 with amount 120.50").wait_for()
        assert await page.get_by_text("Pay INV-1004 with amount 120.50").count() == 1


@pytest.mark.postgres
@pytest.mark.slow
async def test_a_store_in_postgresql_and_a_provider_that_is_down(reader: Reader, postgres_databases: Databases) -> None:
    reader.env["PERDURE_STORE_URL"] = postgres_databases.make()
    doctor, worker = [command for block in find_section(6) for command in block.commands]
    worker_process = await reader.start_worker(*worker[1:])
    await reader.perdure(*doctor[1:])
    await reader.perdure("run", "desk", "Find INV-1004", "--id", "find-1")
    await reader.loopback.kill(worker_process)

    desk = reader.folder / "desk.py"
    desk.write_text(desk.read_text().replace('"demo:tools"', '"openai:gpt-5-mini"'))
    down, listing = [command for block in find_section(7) for command in block.commands]
    reader.env["OPENAI_BASE_URL"] = "http://127.0.0.1:9"
    await reader.start_worker(*down[1:])
    await reader.perdure("run", "desk", "Find INV-1004", "--id", "find-2", "--detach")

    async def is_held_up() -> bool:
        return "find-2" in await reader.perdure(*listing[1:])

    await eventually(is_held_up, what="find-2 to be held up")
