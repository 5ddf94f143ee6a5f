"""The console at many open runs: the server's time for the first page of each kind, and when a browser can be used."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from benchmarks.contestants import Contestant
from benchmarks.lab import Lab
from benchmarks.measures import Figures, Scale
from benchmarks.output import Progress
from benchmarks.parked import open_process
from benchmarks.parking import AGENT, TALK
from benchmarks.web import WebProcess, serve
from perdure import Client
from perdure.types.interface import PENDING_ATTRIBUTE

_STARTS = 20
"""Runs that are started at once."""
_TALKS = 100
"""The newest runs: each has had a turn, as the rows of a list have in practice."""
_CACHE = 1000
"""Workflows that the worker keeps."""
_STUCK_SECONDS = 300
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_PRESS_J = """
const pressing = setInterval(() => {
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
  if (document.querySelector(".row.current")) { window.usableAfter = performance.now(); clearInterval(pressing); }
}, 1);
"""
"""Presses ``j`` until a row of the inbox is chosen: from then on keys work."""


async def console(lab: Lab, _: Sequence[Contestant], scale: Scale) -> Figures:
    """One process of the console and one worker, on the embedded server and SQLite. Raises ``RuntimeError`` if a call
    that waits in its run never comes to be a row of the inbox."""
    queue, store_url = "console", f"sqlite:///{lab.root}/console.db"
    async with AsyncExitStack() as stack:
        client = Client(lab.client, store_url=store_url, task_queue=queue, actor="bench")
        stack.push_async_callback(client.close)
        arguments = ("worker", lab.address, queue, store_url, str(lab.root / "console.jsonl"), str(_CACHE))
        await stack.enter_async_context(open_process(*arguments))
        names = await _seed(client, scale)
        served = await stack.enter_async_context(serve(lab.address, store_url, queue, "console"))
        pages = {
            "inbox": "/console/inbox",
            "inbox, what has changed": "/console/inbox/changes",
            "runs": "/console/runs",
            "runs, that wait": "/console/runs?status=waiting",
            "run": f"/console/runs/{names['waiting']}",
            "run, long": f"/console/runs/{names['long']}",
            "chat": f"/console/chat/{AGENT}/{names['waiting']}",
            "chat, long": f"/console/chat/{AGENT}/{names['long']}",
        }
        figures: dict[str, Any] = {"open": scale.console_open, "waits": scale.console_waits}
        figures["pages"] = {name: await _time_page(served, path, scale.console_reads) for name, path in pages.items()}
        figures["browser"] = await _time_browser(
            served.url, {name: pages[name] for name in ("inbox", "runs", "run", "chat")}
        )
    return {"perdure": figures}


async def _seed(client: Client, scale: Scale) -> Mapping[str, str]:
    """Start the runs, the long conversation and those with a turn last, which are the first rows of the list. Return
    the ids of one that waits and of the long one."""
    idle = max(scale.console_open - scale.console_waits - _TALKS - 1, 0)
    await _start(client, "started, to wait", range(scale.console_waits), lambda number: str(number))
    store = await client.store()
    await _await_count("rows of waits", scale.console_waits, store.count_waits)
    await _start(client, "started, idle", range(scale.console_waits, scale.console_waits + idle), lambda _: None)
    await _await_count("backlog of idle runs", 0, lambda: _read_backlog(client))
    of_queue = f"TaskQueue = '{client.task_queue}' AND ExecutionStatus = 'Running'"
    waiting = (await client.temporal.count_workflows(f"{PENDING_ATTRIBUTE} > 0 AND {of_queue}")).count
    if waiting != await store.count_waits():
        raise RuntimeError(f"{waiting} runs wait, and the store has {await store.count_waits()} rows")
    progress = Progress("turns of the long conversation", scale.console_turns)
    for _ in range(scale.console_turns):
        await (await client.send(AGENT, TALK, id="console-long")).result()
        progress.step()
    for number in range(_TALKS):
        await (await client.send(AGENT, TALK, id=f"console-talk-{number}")).result()
    return {"waiting": f"console-{scale.console_waits // 2}", "long": "console-long"}


async def _start(client: Client, what: str, numbers: range, message: Callable[[int], str | None]) -> None:
    slots, progress = asyncio.Semaphore(_STARTS), Progress(what, len(numbers))

    async def start(number: int) -> None:
        async with slots:
            await client.start(
                AGENT,
                message(number),
                mode="session",
                id=f"console-{number}",
                tenant="acme",
                user=f"user-{number % 50}",
            )
            progress.step()

    await asyncio.gather(*map(start, numbers))


async def _read_backlog(client: Client) -> int:
    """Workflow tasks that no worker has taken."""
    described = await client.temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.temporal.namespace,
            task_queue=TaskQueue(name=client.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            report_stats=True,
        )
    )
    return int(described.stats.approximate_backlog_count)


async def _await_count(what: str, count: int, read: Callable[[], Awaitable[int]]) -> None:
    """Wait until there are so many. Raises ``RuntimeError`` if nothing changes any more."""
    progress, last, changed_at = Progress(what, count), -1, time.monotonic()
    while (now := await read()) != count:
        if now != last:
            last, changed_at = now, time.monotonic()
        if time.monotonic() - changed_at > _STUCK_SECONDS:
            raise RuntimeError(f"{what}: {now} of {count}, as {_STUCK_SECONDS} s ago")
        progress.set(now)
        await asyncio.sleep(0.5)


async def _time_page(served: WebProcess, path: str, count: int) -> dict[str, float]:
    """Wall time of one reader, one page after the other, and the CPU time of the process, in milliseconds."""
    size = len([await served.read(path) for _ in range(3)][-1])
    cpu, times = await served.cpu(), []
    for _ in range(count):
        began = time.perf_counter()
        await served.read(path)
        times.append((time.perf_counter() - began) * 1000)
    used = (await served.cpu() - cpu) * 1000 / count
    ordered = sorted(times)
    return {"bytes": size, "cpu_ms": used, "p50": statistics.median(ordered), "p95": ordered[int(len(ordered) * 0.95)]}


async def _time_browser(url: str, paths: Mapping[str, str]) -> dict[str, dict[str, float]] | None:
    """Milliseconds from the navigation until the page's scripts have run and, in the inbox, keys work: in a Chromium at
    full speed, and at a quarter of it. None without one."""
    binary = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if binary is None or find_spec("playwright") is None:
        print("not measured: a browser; it needs Chromium, and requirements/browser.txt", file=sys.stderr)
        return None
    from playwright.async_api import async_playwright

    figures: dict[str, dict[str, float]] = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        for slowness in (1, 4):
            for name, path in paths.items():
                times = [await _time_opening(browser, url + path, slowness) for _ in range(5)]
                figures[f"{name}, {slowness}x slower" if slowness > 1 else name] = {
                    key: statistics.median(one[key] for one in times) for key in times[0]
                }
        await browser.close()
    return figures


async def _time_opening(browser: Any, address: str, slowness: int) -> dict[str, float]:
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    await session.send("Emulation.setCPUThrottlingRate", {"rate": slowness})
    is_inbox = address.endswith("/inbox")
    if is_inbox:
        await page.add_init_script(_PRESS_J)
    await page.goto(address)
    timing = await page.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
    times = {"first_byte": timing["responseStart"], "scripts": timing["domContentLoadedEventEnd"]}
    if is_inbox:
        await page.wait_for_function("window.usableAfter")
        times["keys"] = await page.evaluate("window.usableAfter")
    await context.close()
    return times
