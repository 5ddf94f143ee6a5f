"""Every program in the documentation runs, every command and option in it exists, every link leads somewhere.

A comment above a block says how it is run: ``<!-- test: skip REASON -->``; ``<!-- test: file NAME -->`` keeps the
program under that name for what follows; ``<!-- test: serve -->`` lets it, a `perdure worker` or a `perdure serve`,
run until the end of the page; ``<!-- test: run -->`` runs a block of shell; ``<!-- test: continue -->`` continues in
the namespace of the program before, where ``await`` may stand at the top level; ``<!-- test: output -->`` is what the
program before has printed; ``<!-- test: elsewhere FILE -->``: the tests of FILE run these commands. 127.0.0.1:8000 is
replaced by the address of the page's `perdure serve`. Where the text says "Save it as `NAME`" and
`perdure worker NAME`, that is done.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import re
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import typer
from temporalio.client import Client

from perdure.cli import app
from tests.docs.loopback import ROOT, Loopback, Process, ended, printed
from tests.docs.pages import Block, Page, awaits, pages
from tests.servers.model_server import Call, Reply
from tests.support.namespaces import indexed_namespace
from tests.support.ports import find_free_ports
from tests.support.wait import eventually

PAGES = pages()
MOST_SKIPPED = 5
NOT_RUN = ("skip ", "elsewhere ")
EVERYDAY_PAGES = {
    "README.md",
    "docs/quickstart.md",
    "docs/how-to/approvals.md",
    "docs/how-to/conversations.md",
    "docs/how-to/subagents.md",
}
"""Pages whose programs run in ``make test``; those of the others run in ``make test-all``."""
LONGEST = 90.0
"""Seconds that a program may take; it takes two."""
JOINED = {
    "Order 77 arrived broken.": "order-77",
    "Where is order 78?": "order-78",
    "Where is order 79?": "order-79",
    "lighthouse": "story-1",
}
"""What is asked in runs into which a page then sends a message, and the ids of these runs."""
INCOMPLETE = {"MissingParameter", "BadOptionUsage", "BadParameter", "NoArgsIsHelpError"}
"""What the command line says of a command that is only named."""
QUEUE = "PERDURE_TASK_QUEUE"
ADDRESS = "127.0.0.1:8000"
READS = {"list", "env", "show order-77"}
"""Commands that are run wherever a page has them; the others start servers, stay, or want an id."""


def example_of(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """A value that fits a JSON Schema."""
    if "$ref" in schema:
        return example_of(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    if options := schema.get("anyOf"):
        return example_of(options[0], root)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {name: example_of(properties[name], root) for name in schema.get("required", ())}
        case "array":
            return [example_of(schema["items"], root)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return "2026-01-01" if "date" in schema.get("format", "") else "77"


class Model:
    """Calls the first tool that it is shown, then answers with the number of messages that users sent.

    Where the page sends a message into a run, it answers when that is there; asked to take its time it never answers.
    """

    def __init__(self, address: str, namespace: str) -> None:
        self.address, self.namespace = address, namespace

    async def joined(self, run_id: str) -> None:
        """Until a message waits for the next call of the run."""
        run = (await Client.connect(self.address, namespace=self.namespace)).get_workflow_handle(run_id)

        async def queued() -> bool:
            return bool((await run.query("status"))["queued"])

        await eventually(queued, what="a message from the page")

    async def __call__(self, request: dict[str, Any]) -> Any:
        messages = request["messages"]
        users = sum(message["role"] == "user" for message in messages)
        for text, run_id in JOINED.items():
            if users == 1 and text in str(messages):
                await self.joined(run_id)
        asked = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=0)
        if "take your time" in str(messages[asked:]).lower():
            return Reply(text="…", hang=asyncio.Event(), hang_after=-1)
        called = any(message["role"] == "tool" for message in messages[asked:])
        if called or not request.get("tools"):
            answer = f"Done ({users})."
            return f"<finish>{answer}</finish>" if "<finish>" in str(messages) else answer
        tool = request["tools"][0]["function"]
        return Call(tool["name"], example_of(tool["parameters"], tool["parameters"]))


@pytest.mark.server
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name in EVERYDAY_PAGES else pytest.mark.slow)
        for page in PAGES
        if page.programs or any(block.mark in ("serve", "run") for block in page.blocks)
    ],
)
async def test_programs_and_commands_run(page: Page, loopback: Loopback) -> None:
    namespace = f"docs-{uuid.uuid4().hex[:8]}"  # pages use the same ids
    await indexed_namespace(loopback.address, namespace)
    loopback.model.rule = Model(loopback.address, namespace)
    env = {"TEMPORAL_NAMESPACE": namespace}
    serving: list[Process] = []
    said = ""
    for blocks in page.sections:
        block = blocks[0]
        if block.mark == "serve":
            serving.append(await serve(block, loopback, env))
        elif block.mark == "run":
            (loopback.folder / ".curlrc").write_text("fail-with-body\n")
            words = ["bash", "-euo", "pipefail", "-c", place(block.body, loopback)]
            done = await loopback.run(*words, env=env | {"CURL_HOME": str(loopback.folder)})
            assert done.code == 0, f"{page.name}:{block.line}: {done}"
        elif block.mark == "output":
            assert said == block.body, f"{page.name}:{block.line}"
        elif block.language == "python" and not block.mark.startswith(NOT_RUN):
            # A program that serves its own agents has a queue of its own, where another worker serves the page's.
            own = {} if not serving or any("client" in each.body.lower() for each in blocks) else {QUEUE: ""}
            process = await loopback.spawn(*program(blocks, loopback), env=env | own, cwd=loopback.folder)
            async with asyncio.timeout(LONGEST):
                done = await ended(process)
            assert (done.code, done.err) == (0, ""), f"{page.name}:{block.line}: {done}"
            said = printed(done)
            if page.served and not serving:
                (loopback.folder / page.served).write_text(block.body)
                serving.append(await loopback.spawn("perdure", "worker", page.served, env=env, cwd=loopback.folder))
        for command in block.commands if not block.mark.startswith(NOT_RUN) else ():
            if command[0] == "temporal" or (command[0] == "perdure" and " ".join(command[1:]) in READS):
                await run_command(command, loopback, env)
    for process in serving:
        os.kill(process.pid, signal.SIGTERM)
        out, err = await process.communicate()
        assert process.returncode == 0, ("a worker ends by itself when it is told to", out, err)


def program(blocks: list[Block], loopback: Loopback) -> list[str | Path]:
    """The command that runs a program and what continues it."""
    files = []
    for block in blocks:
        named = block.mark.removeprefix("file ") if block.mark.startswith("file ") else f"line_{block.line}.py"
        files.append(loopback.folder / named)
        files[-1].write_text(place(block.body, loopback))
    if len(files) == 1 and not awaits(blocks[0]):
        return [sys.executable, files[0]]
    return [sys.executable, "-m", "tests.docs.session", *files]


def place(text: str, loopback: Loopback) -> str:
    """The text with the address of the page's `perdure serve`."""
    return text.replace(ADDRESS, f"127.0.0.1:{loopback.port}")


async def serve(block: Block, loopback: Loopback, env: dict[str, str]) -> Process:
    """A worker, or `perdure serve`, that is there until the page ends."""
    command: list[str | Path] = [*program([block], loopback)] if block.language == "python" else [*next(block.commands)]
    if command[:2] != ["perdure", "serve"]:
        return await loopback.spawn(*command, env=env, cwd=loopback.folder)
    [loopback.port] = find_free_ports(1)
    process = await loopback.spawn(*command, "--port", str(loopback.port), env=env, cwd=loopback.folder)

    async def is_ready() -> bool:
        return (await loopback.run("curl", "--fail", "--silent", f"http://127.0.0.1:{loopback.port}/readyz")).code == 0

    await eventually(is_ready, what="perdure serve")
    return process


async def run_command(command: list[str], loopback: Loopback, env: dict[str, str]) -> None:
    """Run it as it stands, but for the task queue."""
    words = [loopback.task_queue if word == "perdure" else word for word in command[1:]]
    program = command[0]
    if program == "temporal":
        program = os.environ["PERDURE_TEMPORAL_CLI"]
    done = await loopback.run(program, *words, env=env)
    assert done.code == 0, (command, done)


def test_only_a_handful_of_programs_is_skipped_and_each_says_why() -> None:
    marks = [block.mark for page in PAGES for block in page.blocks if block.mark]
    assert all(
        re.fullmatch(r"skip \S.{9,}|elsewhere \S+|serve|run|continue|output|file [\w.]+", mark) for mark in marks
    )
    assert sum(mark.startswith("skip") for mark in marks) <= MOST_SKIPPED


def test_what_is_run_elsewhere_is_run_there() -> None:
    blocks = [block for page in PAGES for block in page.blocks if block.mark.startswith("elsewhere ")]
    assert blocks
    for block in blocks:
        file = ROOT / block.mark.removeprefix("elsewhere ")
        if file.name == "test_tutorial.py":
            continue  # it reads its commands from the page
        helpers = [
            ROOT / f"tests/support/{name}.py" for name in re.findall(r"from tests\.support\.(\w+)", file.read_text())
        ]
        text = "".join(path.read_text() for path in (file, *helpers))
        for command in block.commands:
            *_, subcommand = itertools.takewhile(lambda word: re.fullmatch(r"[a-z-]+", word), command)
            assert subcommand in text, f"{block.line}: {file} has no {subcommand}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_with_their_options(page: Page) -> None:
    kept = {block.mark.removeprefix("file ") for block in page.programs if block.mark.startswith("file ")}
    for command in page.commands:
        match command[0]:
            case "perdure":
                check_perdure(command[1:])
            case "make":
                check_make(command[1:])
            case "python" if command[1].endswith(".py") and command[1] not in kept:
                assert (ROOT / command[1]).is_file(), command
    for command in page.mentions:
        (check_perdure(command[1:], whole=False) if command[0] == "perdure" else check_make(command[1:]))


@functools.cache
def command_line() -> Any:
    """Built once: it takes 20 ms."""
    return typer.main.get_command(app)


def check_perdure(words: list[str], *, whole: bool = True) -> None:
    """Parse ``words`` as the command line does. Without ``whole``, values may be left out or stand for others."""
    command = command_line()
    path, context = "perdure", None
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"`{path}` has no command {words[0]!r}"
        context = type(command).context_class(command, parent=context, info_name=path)
        command, path, words = command.commands[words[0]], f"{path} {words[0]}", words[1:]
    wrong = ""
    try:
        command.make_context(path, list(words), parent=context)
    except Exception as error:
        if whole or type(error).__name__ not in INCOMPLETE:
            wrong = f"{type(error).__name__}: {error}"
    assert not wrong, f"`{path} {' '.join(words)}`: {wrong}"


def check_make(words: list[str]) -> None:
    """The targets are in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for word in words if "=" not in word and not word.startswith("-")}
    assert named <= targets, f"make has no target {named - targets}"


def test_a_wrong_command_is_noticed() -> None:
    for words in (["serves"], ["server", "begin"], ["env", "--adress", "x"], ["env", "x"], ["doctor", "-x"]):
        with pytest.raises(AssertionError):
            check_perdure(words)
    check_perdure(["doctor", "-o", "json", "--address=x"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in Page(Path(target)).anchors, f"{page.name} links to {link}"


TOP_LEVEL = ("docs", "examples", "deploy", "tests", "scripts", "perdure")
PARTS = tuple(path.parent.name for path in (ROOT / "perdure").glob("*/__init__.py"))
NAMED = re.compile(rf"`((?:{'|'.join((*TOP_LEVEL, *PARTS))})/[\w./-]*|test_\w+\.py)`")
"""`tests/replay`; `loop/decide.py`, of perdure; `test_forks.py`, anywhere under tests/."""


def file_exists(name: str) -> bool:
    if name == "test_desk.py":  # the reader's own, of the tutorial
        return True
    if name.startswith("test_"):
        return any((ROOT / "tests").rglob(name))
    return (ROOT / name).exists() or (ROOT / "perdure" / name).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Page) -> None:
    missing = [name for name in NAMED.findall(page.text) if "NNN" not in name and not file_exists(name)]
    assert not missing, f"{page.name} names {missing}"


@functools.cache
def names_of_tests() -> frozenset[str]:
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(
        name for source in sources for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", source, re.MULTILINE)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_are_named_exist(page: Page) -> None:
    missing = set(re.findall(r"`(test_\w+)`", page.text)) - names_of_tests()
    assert not missing, f"{page.name} names {missing}"
