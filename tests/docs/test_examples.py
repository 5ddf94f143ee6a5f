"""The ten programs that come first under examples/, as processes: a real Temporal server, and a model on loopback."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docs.asked import Request, results, system, track, users
from tests.docs.loopback import EXAMPLES, Ended, Loopback, Process, ended, said, succeeded
from tests.servers.model_server import Call, Reply, as_reply
from tests.support import npm

pytestmark = pytest.mark.server

SHORT = 27
"""Lines: each of the first ten has fewer."""


def programs() -> list[Path]:
    """All that can be run, in the order of their numbers."""
    return sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/*.ts")])


def test_the_first_ten_are_short() -> None:
    ten = [path for path in programs() if int(str(path.relative_to(EXAMPLES))[:2]) <= 10]
    assert len(ten) == 10
    long = {path.name: lines for path in ten if (lines := len(path.read_text().splitlines())) >= SHORT}
    assert not long
    assert all(len(line) <= 120 for path in ten for line in path.read_text().splitlines())


def test_every_example_is_tested_and_listed_with_its_command() -> None:
    folder = Path(__file__).parent
    files = [*folder.glob("test_*example*.py"), folder / "test_tutorial.py"]
    tests = "".join(path.read_text() for path in files)
    listed = (EXAMPLES / "README.md").read_text()
    for path in programs():
        name = str(path.relative_to(EXAMPLES)).partition("/")[0]
        assert f'EXAMPLES / "{name}"' in tests, f"no test runs {name}"
        assert f"]({name})" in listed, f"examples/README.md does not list {name}"


def test_what_the_sdk_warns_of_is_not_taken_for_output() -> None:
    """Also where it breaks into a line that the program prints piece by piece."""
    at = "\x1b[2m2026-11-22T04:40:17.34Z\x1b[0m \x1b[33m WARN\x1b[0m"
    warned = f"{at} \x1b[2mtemporalio_sdk_core::worker\x1b[0m\x1b[2m:\x1b[0m Task not found\n"
    said = f"{warned}one t{warned}wo\nWARN: three\n"
    assert succeeded(Ended(0, said, "")) == "one two\nWARN: three\n"


async def test_hello(loopback: Loopback) -> None:
    """Not forked: a real start, and the interpreter's own end, which must not abort."""
    loopback.model.rule = lambda request: f"{system(request)} {users(request)[0]} What is written."
    out = succeeded(await loopback.run("python3", EXAMPLES / "01_hello.py"))
    assert out == "You answer in one line of verse. What outlives a crash? What is written.\n"


async def test_tools(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        match len(results(request)):
            case 0:
                return [Call("stock", {"article": "lamp"}), Call("stock", {"article": "sofa"})]
            case 2:
                return Call("order", {"article": "lamp", "quantity": 2})
        return "\n".join(results(request))

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "02_tools.py")).splitlines()
    assert out[:2] == ["4", "the arguments of stock are not valid:"], "the second call does not fit the schema"
    assert "'lamp' or 'chair'" in out[2]
    assert re.fullmatch(r"ordered 2 lamp, under key [0-9a-f]{32,}", out[3])


async def test_chat_bot_remembers_each_user(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        last = users(request)[-1]
        if last.startswith("I live in ") and request["messages"][-1]["role"] == "user":
            return Call("remember", {"what": "home", "value": last.removeprefix("I live in ")})
        return f"{system(request).partition(': ')[2]} {len(users(request))}"

    loopback.model.rule = rule
    await loopback.own_namespace()

    async def chat(user: str, topic: str, *texts: str) -> list[str]:
        typed = "\n".join([user, topic, *texts, "", ""])
        out = succeeded(await loopback.python(EXAMPLES / "03_memory.py", says=typed))
        return re.findall(rf"{user}> (.+)\n", out)

    assert await chat("ana", "homes", "I live in Porto", "Hm.") == ["{'home': 'Porto'} 1", "{'home': 'Porto'} 2"]
    assert await chat("jan", "homes", "Hi", "I live in Delft") == ["{} 1", "{'home': 'Delft'} 2"]
    assert await chat("ana", "travel", "Hi") == ["{'home': 'Porto'} 1"], "another conversation, the same memory"
    assert await chat("ana", "homes", "Hi") == ["{'home': 'Porto'} 3"], "the session went on where it was"


class Audit:
    """The model of the auditor: quarter after quarter. ``stalls`` are replies that stop midway, once each."""

    def __init__(self, *stalls: int) -> None:
        self.stalls = list(stalls)

    def __call__(self, request: Request) -> Reply:
        done = results(request)
        if users(request)[-1].startswith("Stop"):
            return as_reply(f"Stopped after {len(done)}.")
        reply = as_reply(Call("audit", {"quarter": f"Q{len(done) + 1}"}) if len(done) < 4 else "12 are missing.")
        if len(done) in self.stalls:
            self.stalls.remove(len(done))
            reply.hang, reply.hang_after = asyncio.Event(), 2
        return reply


@pytest.mark.fault(
    "Workers",
    "The script that made a `call(id=…)` is killed with `kill -9`.",
    "The same script, started again, continues the run and repeats nothing that was finished.",
)
@pytest.mark.slow
async def test_a_long_job_survives_kill_9(loopback: Loopback) -> None:
    loopback.model.rule = Audit(2)
    await loopback.own_namespace()
    heard = []

    async def begin() -> Process:
        return await loopback.spawn("python", EXAMPLES / "04_long_job.py")

    script = await begin()
    heard += [await said(script.stdout, "Q1"), await said(script.stdout, "Q2")]
    heard.append((await loopback.kill(script)).out)  # in the middle of a tool
    script = await begin()
    heard.append(await said(script.stdout, "Q2"))
    await loopback.model.wait_requests(3)
    heard.append((await loopback.kill(script)).out)  # in the middle of a model's reply
    out = succeeded(await ended(await begin()))
    assert re.findall(r"auditing (Q\d)", "".join([*heard, out])) == ["Q1", "Q2", "Q2", "Q3", "Q4"]
    answer = re.sub(r"auditing .*\n", "", out)
    assert re.fullmatch(r"12 are missing\.\n5 model calls, \d+ tokens\n", answer)
    assert succeeded(await ended(await begin())) == answer, "it is done, and says so again"
    stats = loopback.model.stats
    assert (stats.completed, stats.aborted) == (5, 1), "what was paid for was paid for once"


async def test_steering_from_another_process(loopback: Loopback) -> None:
    loopback.model.rule = Audit(1)  # only the interrupt ends that reply
    await loopback.own_namespace()
    job = await loopback.spawn("python", EXAMPLES / "04_long_job.py")
    await loopback.model.wait_requests(2)
    out = succeeded(await loopback.python(EXAMPLES / "05_steer.py", "audit-2025", "Stop, and sum up.")).splitlines()
    assert out[0] == "audit-2025 is running, at: model; model calls so far: 1"
    assert out[1] == "Stopped after 1."
    said_by = [line.strip().partition(":")[0] for line in out[2:]]
    assert said_by == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert "Stopped after 1.\n" in succeeded(await ended(job)), "the program that began it gets the answer too"
    assert loopback.model.stats.aborted == 1


class StalledOnce:
    """A model whose first reply never comes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked = asyncio.Event()

    def __call__(self, request: Request) -> Reply:
        reply = as_reply(self.text)
        if not self.asked.is_set():
            reply.hang = asyncio.Event()
        self.asked.set()
        return reply


async def test_a_web_endpoint_starts_and_awaits_a_run(loopback: Loopback) -> None:
    loopback.model.rule = model = StalledOnce("It left on Monday.")
    await loopback.own_namespace()
    web = EXAMPLES / "06_web.py"
    asked = {"id": "order-77", "message": "Where is it?"}

    async def serve() -> tuple[Process, str]:
        server = await loopback.spawn("uvicorn", "--app-dir", web.parent, f"{web.stem}:app", "--port", "0")
        line = await said(server.stderr, "running on")
        return server, re.findall(r"http://\S+", line)[0] + "/ask"

    async with httpx.AsyncClient(timeout=60) as http:
        server, url = await serve()
        begun = asyncio.create_task(http.post(url, json=asked))
        await model.asked.wait()
        await loopback.kill(server)
        with pytest.raises(httpx.TransportError):
            await begun
        server, url = await serve()
        answers = [await http.post(url, json=asked) for _ in range(2)]
    assert [answer.json() for answer in answers] == [{"id": "order-77", "answer": "It left on Monday."}] * 2
    assert loopback.model.stats.completed == 1
    os.kill(server.pid, signal.SIGTERM)
    await ended(server)


async def test_own_worker_beside_own_workflow(loopback: Loopback) -> None:
    loopback.model.rule = lambda request: f"[{users(request)[0]}] Fine."
    await loopback.own_namespace()
    assert succeeded(await loopback.python(EXAMPLES / "07_own_worker.py")) == "[Call me Ishmael.] Fine.\n"


@pytest.mark.node
async def test_a_client_in_typescript(loopback: Loopback) -> None:
    modules = await asyncio.to_thread(npm.packages, EXAMPLES / "08_typescript", "the TypeScript client")
    folder = npm.copy(EXAMPLES / "08_typescript", modules, loopback.folder / "typescript")
    steered = asyncio.Event()

    async def rule(request: Request) -> Any:
        await steered.wait()
        return track(request)

    loopback.model.rule = rule
    worker = await loopback.spawn("python", EXAMPLES / "11_worker.py")
    client = await loopback.spawn("npm", "start", "--silent", "--", "Where is order 77?", cwd=folder)
    status = await said(client.stdout, "support-")
    steered.set()
    last = await ended(client)
    assert last.code == 0, last
    assert re.fullmatch(r"support-[0-9a-f-]{36} is running, at: model\n", status)
    assert last.out == "It is on its way: order 77 is out for delivery.\n"
    assert users(loopback.model.requests[-1]) == ["Where is order 77?", "Be brief, please."]
    await loopback.kill(worker)


async def test_unit_test_needs_neither_server_nor_key(loopback: Loopback) -> None:
    nothing = {"OPENAI_API_KEY": "", "TEMPORAL_ADDRESS": "127.0.0.1:1", "OPENAI_BASE_URL": "http://127.0.0.1:1"}
    command = ("pytest", "-p", "no:cacheprovider", EXAMPLES / "09_unit_test.py")
    assert "1 passed" in succeeded(await loopback.run(*command, env=nothing))


async def test_custom_provider_needs_no_key(loopback: Loopback) -> None:
    out = succeeded(await loopback.python(EXAMPLES / "10_custom_provider.py", env={"OPENAI_API_KEY": ""}))
    assert out == "HEAR YE!!! (4 tokens)\n"
    assert loopback.model.stats.requests == 0
