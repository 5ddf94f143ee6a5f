"""What makes thousands of small tests quick."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes 700,000 objects that stay to the end: modules of four SDKs, items. Looking again and again for
    cycles among them takes a quarter of the collection's CPU, and once more each time that a test has left many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
