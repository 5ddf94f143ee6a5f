"""The model process of the demo, where there is no key for a real one: ``python -m perdure.cli.demo.model``."""

from __future__ import annotations

import asyncio

from ...demo_model.model import DemoModel
from ...embedded.process import on_orphaned, report

STORY_DELAY = 0.05
"""Seconds between two tokens: slow enough that a call takes a while, and can be cut short."""


async def serve_story() -> None:
    """Serve until told to stop, or until the demo is gone."""
    stop = asyncio.Event()
    on_orphaned(stop.set)
    async with DemoModel(delay=STORY_DELAY) as model:
        report("serving", base_url=model.base_url)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve_story())
