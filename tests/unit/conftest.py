"""Refuses tests of this folder that load an SDK: each process of the stage would import it, which takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator

import pytest

_SDKS = frozenset(("anthropic", "google.genai", "mcp", "openai", "pydantic_ai"))
_WAY_OUT = "Put it into tests/contract or tests/integration: CONTRIBUTING.md, where a test goes."


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fails the collection of a test file that imports one."""
    before = _list_sdks()
    report = yield
    if loaded := _list_sdks() - before:
        report.outcome, report.longrepr = "failed", f"{collector.nodeid} imports {', '.join(loaded)}. {_WAY_OUT}"
    return report


@pytest.fixture(autouse=True)
def _no_sdk_is_loaded() -> Iterator[None]:
    before = _list_sdks()
    yield
    if loaded := _list_sdks() - before:
        pytest.fail(f"the test has loaded {', '.join(loaded)}. {_WAY_OUT}")


def _list_sdks() -> frozenset[str]:
    """Those that are loaded, by tests of other folders, too."""
    return _SDKS & sys.modules.keys()
