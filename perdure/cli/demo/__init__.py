"""``perdure demo``: a run on real files whose worker is killed in the middle, on this machine, without an API key."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..._terminal import print_line, print_text, style_text
from ...errors import InvalidInputError, RunError
from ..connection import ServerOptions, find_ui_url, get_server_address, open_client
from ..output import INTERRUPTED, format_conversation

if TYPE_CHECKING:
    from ...client.client import Client
    from ...client.run import Run
    from .scenario import Claim, DemoProcesses


REAL_MODEL = "openai:gpt-5-mini"
# Split, so that the demo's own search does not find this line.
DEFAULT_QUESTION = "Where is `class Agent" + "Workflow`, and what does it do?"
FOLDER_QUESTION = "What is in this folder?"
_DEMO_MODEL_SECONDS, _REAL_MODEL_SECONDS = 55.0, 600.0
"""Seconds after which the demo is given up."""


def demo(
    question: Annotated[str | None, typer.Argument(help="What to ask about the files.")] = None,
    path: Annotated[Path | None, typer.Option(help="The folder to ask about; by default perdure's own source.")] = None,
    model: Annotated[
        str | None, typer.Option(help=f'"demo", or a real model; {REAL_MODEL} if OPENAI_API_KEY is set.')
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep worker and model until Ctrl-C, to look around.")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Run an agent on real files, kill -9 its worker in the middle, and watch the run go on.

    Needs no API key and no server. The exit code is 0 only if all claims of the demo held.
    """
    folder = path or Path(__file__).parent.parent.parent
    if not folder.is_dir():
        raise InvalidInputError(f"there is no folder {folder}", hint="Name a folder with text files.")
    question = question or (FOLDER_QUESTION if path else DEFAULT_QUESTION)
    model = model or (REAL_MODEL if os.environ.get("OPENAI_API_KEY") else "demo")
    try:
        all_held = asyncio.run(_run_demo(server, folder.resolve(), question, model, keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print_text("\nstopped; worker and model have ended, the run is closed", error=True)
        raise typer.Exit(INTERRUPTED) from None
    if not all_held:
        raise typer.Exit(1)


async def _run_demo(server: ServerOptions, folder: Path, question: str, model: str, keep: bool) -> bool:
    """Whether all claims held."""
    from ... import _config as config
    from .scenario import DEMO_MODEL, DemoProcesses

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: all processes are ended
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    queue = f"perdure-demo-{os.urandom(4).hex()}"  # its own, so that no other worker takes the run up
    async with open_client(server, start_server=True, task_queue=queue) as client:
        client.store_url = client.store_url or config.get_home_store_url()
        async with contextlib.aclosing(DemoProcesses(client, folder, model)) as processes:
            await processes.start_model()
            await _print_introduction(client, processes, folder, question)
            limit = _DEMO_MODEL_SECONDS if model == DEMO_MODEL else _REAL_MODEL_SECONDS
            all_held = await _play_scenario(client, processes, question, limit)
            if keep:
                _print_title(f"Worker and model stay until Ctrl-C; queue {queue}")
                await asyncio.Event().wait()
        return all_held


async def _play_scenario(client: Client, processes: DemoProcesses, question: str, limit: float) -> bool:
    from .scenario import DemoScenario, check_claims, count_attempts
    from .worker import AGENT_NAME

    run: Run | None = None
    try:
        async with asyncio.timeout(limit):
            scenario = DemoScenario(processes)
            worker = await processes.start_worker()
            scenario.print_step("worker", f"{worker.pid} serves agent {AGENT_NAME}")
            run = await client.start(AGENT_NAME, question, id=f"demo-{os.urandom(4).hex()}")
            scenario.print_step("run", f"{run.id} started")
            response = await scenario.play(run)
            requests, attempts = await processes.count_model_requests(), await count_attempts(run)
            claims = check_claims(response, scenario.observations, attempts, requests)
            _print_title("The conversation")
            for line in format_conversation(response.messages):
                print_line(line)
            await _print_claims(client, run, claims, scenario.observations.resumed_after_seconds)
            return all(claim.holds for claim in claims)
    except TimeoutError:
        reason = (await run.status()).reason if run else None
        raise RunError(f"the demo is not done after {limit:g} s" + (f": {reason}" if reason else "")) from None
    finally:
        if run is not None:
            await _terminate_run(run)


async def _print_introduction(client: Client, processes: DemoProcesses, folder: Path, question: str) -> None:
    embedded = "embedded Temporal, which stays: `perdure server stop` ends it"
    place = embedded if await find_ui_url(client) else "your Temporal"
    kind = "rules, in a process of its own" if processes.base_url else "a real one: this costs a little"
    facts = {
        "question": question,
        "folder": str(folder),
        "model": f"{processes.model} ({kind})",
        "server": f"{get_server_address(client)} ({place})",
    }
    _print_title("An agent, its worker killed in the middle")
    for label, text in facts.items():
        print_line(f"  {style_text(label.ljust(9), 'dim')} {text}")
    print_line()


async def _print_claims(client: Client, run: Run, claims: list[Claim], resumed_after_seconds: float | None) -> None:
    _print_title("What was shown")
    for claim in claims:
        mark = style_text("✓", "green") if claim.holds else style_text("✗ NOT TRUE:", "red")
        print_line(f"  {mark} {claim.text}")
    if resumed_after_seconds is not None:
        print_line(f"    {resumed_after_seconds:.1f} s from the kill to the next model call")
    _print_title("Look at it")
    if ui := await find_ui_url(client, run.id):
        print_line(f"  {ui}")
    print_line(f"  perdure show {run.id}")


def _print_title(text: str) -> None:
    print_line()
    print_line(style_text(text, "bold"))


async def _terminate_run(run: Run) -> None:
    """Terminates the run: no worker would ever take it up again."""
    from temporalio.service import RPCError

    with contextlib.suppress(RPCError):  # it has ended
        await run.handle.terminate("the demo was given up")
