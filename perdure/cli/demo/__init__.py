"""``perdure demo``: a run on real files whose worker is killed in the middle, on this machine, without a key."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InvalidInputError, RunError
from ...terminal import print_line, print_text, style_text
from ..connection import ConnectionOptions, find_ui_url, open_client
from ..options import ServerOptions
from ..output import INTERRUPTED, can_colour_stdout, format_conversation

if TYPE_CHECKING:
    from ...client.client import Client
    from ...client.run import Run
    from ...types.interface import Response
    from .scenario import AttemptCounts, DemoProcesses, DemoScenario


REAL_MODEL = "openai:gpt-5-mini"
# In two pieces: whoever searches the source for it should not find this line.
DEFAULT_QUESTION = "Where is `class Agent" + "Workflow`, and what does it do?"
FOLDER_QUESTION = "What is in this folder?"
_DEMO_MODEL_SECONDS, _REAL_MODEL_SECONDS = 55.0, 600.0
"""How long it may take before it is given up."""


def demo(
    question: Annotated[str | None, typer.Argument(help="What to ask about the files.", show_default=False)] = None,
    path: Annotated[
        Path | None, typer.Option(help="The folder to ask about; else perdure's own source.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f'"demo", or a real one; {REAL_MODEL} if OPENAI_API_KEY is set.', show_default=False),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep worker and model until Ctrl-C, to look around.")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Run an agent on real files, kill -9 its worker in the middle, and watch the run go on.

    Needs no key and no server of yours. Exit code 0 only if everything that it claims was true.
    """
    folder = path or Path(__file__).parent.parent.parent
    if not folder.is_dir():
        raise InvalidInputError(f"there is no folder {folder}", hint="--path names a folder with text files.")
    question = question or (FOLDER_QUESTION if path else DEFAULT_QUESTION)
    model = model or (REAL_MODEL if os.environ.get("OPENAI_API_KEY") else "demo")
    try:
        held = asyncio.run(_run_demo(server, folder.resolve(), question, model, keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print_text("\nstopped; worker and model are gone, the run is closed", error=True)
        raise typer.Exit(INTERRUPTED) from None
    if not held:
        raise typer.Exit(1)


async def _run_demo(server: ConnectionOptions, folder: Path, question: str, model: str, keep: bool) -> bool:
    """Whether all that was claimed was true."""
    from ... import config
    from .scenario import DEMO_MODEL, DemoProcesses

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: nothing is left behind
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    queue = f"perdure-demo-{os.urandom(4).hex()}"  # its own, so that no other worker takes the run up
    async with open_client(server, start_server=True, task_queue=queue) as client:
        client.store_url = client.store_url or config.get_home_store_url()
        async with DemoProcesses(client, folder, model) as cast:
            limit = _DEMO_MODEL_SECONDS if model == DEMO_MODEL else _REAL_MODEL_SECONDS
            held = await _play_scenario(client, cast, folder, question, limit)
            if keep:
                _print_title(f"Worker and model stay until Ctrl-C; queue {queue}")
                await asyncio.Event().wait()
        return held


async def _play_scenario(client: Client, cast: DemoProcesses, folder: Path, question: str, limit: float) -> bool:
    from .scenario import DemoScenario, count_attempts
    from .worker import AGENT_NAME

    await cast.start_model()
    await _print_introduction(client, cast, folder, question)
    run: Run | None = None
    try:
        async with asyncio.timeout(limit):
            story = DemoScenario(cast)
            worker = await cast.start_worker()
            story.print_step("worker", f"{worker.pid} serves agent {AGENT_NAME}")
            run = await client.start(AGENT_NAME, question, id=f"demo-{os.urandom(4).hex()}")
            story.print_step("run", f"{run.id} started")
            response = await story.play(run)
            return await _print_report(
                client, run, response, story, await cast.count_model_requests(), await count_attempts(run)
            )
    except TimeoutError:
        reason = (await run.status()).reason if run else None
        raise RunError(f"the demo is not done after {limit:g} s" + (f": {reason}" if reason else "")) from None
    finally:
        if run is not None:
            await _terminate_run(run)


async def _print_introduction(client: Client, cast: DemoProcesses, folder: Path, question: str) -> None:
    from ..connection import get_server_address

    small = "rules, in a process of its own" if cast.base_url else "a real one: this costs a little"
    where = (
        "embedded Temporal, which stays: `perdure server stop` ends it"
        if await find_ui_url(client)
        else "your Temporal"
    )
    _print_title("An agent, its worker killed in the middle")
    for label, text in (
        ("question", question),
        ("folder", str(folder)),
        ("model", f"{cast.model} ({small})"),
        ("server", f"{get_server_address(client)} ({where})"),
    ):
        print_line(f"  {style_text(label.ljust(9), 'dim', on=can_colour_stdout())} {text}")
    print_line()


async def _print_report(
    client: Client, run: Run, response: Response, story: DemoScenario, asked: int | None, tried: AttemptCounts
) -> bool:
    from .scenario import check_claims

    colour = can_colour_stdout()
    _print_title("The conversation")
    for line in format_conversation(response.messages, colour=colour):
        print_line(line)
    _print_title("What was shown")
    made = check_claims(response, story.observations, tried, asked)
    for claim in made:
        mark = style_text("✓", "green", on=colour) if claim.holds else style_text("✗ NOT TRUE:", "red", on=colour)
        print_line(f"  {mark} {claim.text}")
    if story.observations.resumed_after_seconds is not None:
        print_line(f"    {story.observations.resumed_after_seconds:.1f} s from the kill to the next model call")
    _print_title("Look at it")
    if ui := await find_ui_url(client, run.id):
        print_line(f"  {ui}")
    print_line(f"  perdure show {run.id}")
    return all(claim.holds for claim in made)


def _print_title(text: str) -> None:
    print_line()
    print_line(style_text(text, "bold", on=can_colour_stdout()))


async def _terminate_run(run: Run) -> None:
    """A run that the demo gave up would wait for a worker for ever."""
    from temporalio.service import RPCError

    try:
        await run.handle.terminate("the demo was given up")
    except RPCError:
        return  # it has ended
