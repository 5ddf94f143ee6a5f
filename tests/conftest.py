"""Fixtures of every test that needs a real Temporal server; what they yield is explained in tests/support."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import ssl
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import forkserver
from tests.support.left_out import left_out
from tests.support.patience import be_patient
from tests.support.postgres import Databases, open_databases
from tests.support.tries import refuse_alone_elsewhere

if TYPE_CHECKING:  # fixtures import it: the process of xdist that runs no test takes a second less
    from tests.support.engine import Engine

# The suite looks at fewer examples than a developer who has changed what they are about:
# pytest --hypothesis-profile=thorough. `make test-all` looks at those of "rest" (scripts/run_tests.py). The suite's are
# the same each time: new ones are looked for on purpose. None is timed: that would be a test of the machine. A test's
# own `max_examples` would hold for all: where it needs more than others, let it be a multiple of
# `settings.default.max_examples`.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", _UNTIMED, max_examples=10, derandomize=True)
settings.register_profile("rest", _UNTIMED, max_examples=200, derandomize=True)
settings.register_profile("thorough", _UNTIMED, max_examples=1000)
settings.load_profile("suite")


os.environ.setdefault("PERDURE_HEARTBEAT", "1.6")
"""Tests that kill a worker wait for three heartbeats that do not come: 4.8 s, where the default is 6."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes 700,000 objects that stay to the end: modules of four SDKs, items. Looking again and again for
    cycles among them takes a quarter of the collection's CPU, and once more each time that a test has left many. Each
    process of ``make test`` collects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bounds how long each test may wait; no test is left out by every stage of scripts/run_tests.py."""
    for item in items:
        refuse_alone_elsewhere(item)
        be_patient(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports at the end, in bold, what could not be tested on this machine."""
    for said in left_out:
        terminalreporter.section(said, sep="!", yellow=True, bold=True)


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    """The SDKs read the machine's certificates for each client that they make, which takes 25 to 75 ms; the servers
    of our tests speak plain HTTP on loopback, which uses none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _build_has_a_name() -> None:
    forkserver.name_this_build()


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an embedded server in a home of its own, for the whole session."""
    from perdure.embedded.binary import ensure_binary
    from perdure.embedded.home import Home
    from perdure.embedded.server import ensure_server, stop_server

    home = Home(tmp_path_factory.mktemp("perdure-home"))
    before = os.environ.get("PERDURE_TEMPORAL_CLI")
    # Found in the developer's own home before ours takes its place: it is fetched once, not once a session.
    os.environ["PERDURE_TEMPORAL_CLI"] = str(asyncio.run(ensure_binary()).path)
    try:
        yield asyncio.run(ensure_server(home)).address
    finally:
        asyncio.run(stop_server(home))
        if before is None:
            del os.environ["PERDURE_TEMPORAL_CLI"]
        else:
            os.environ["PERDURE_TEMPORAL_CLI"] = before


@pytest.fixture(scope="session")
def postgres_databases() -> Iterator[Databases]:
    """Makes databases on a PostgreSQL server, for tests that are marked ``postgres``."""
    with open_databases() as databases:
        yield databases


@pytest.fixture
def server_address(request: pytest.FixtureRequest) -> str | None:
    """Address of the server, for a test that is marked ``server``; ``TEST_IN_PROCESS=1`` says what needs none."""
    if request.node.get_closest_marker("server") and not os.environ.get("TEST_IN_PROCESS"):
        return str(request.getfixturevalue("temporal_address"))
    return None


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> str:
    """The kind of the engine's store; see ``ON_BOTH_STORES`` of tests/support/engine.py."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
async def engine(
    request: pytest.FixtureRequest, server_address: str | None, tmp_path: Path, store_kind: str
) -> AsyncIterator[Engine]:
    """A task queue and a store of this test's own: ``async with engine.served(agent) as client``.

    On a real server for a test that is marked ``server``, else in this process.
    """
    from tests.support.engine import Engine
    from tests.support.in_process import InProcessEngine

    engine = Engine(server_address, tmp_path) if server_address else InProcessEngine(tmp_path)
    if store_kind == "postgres":
        engine.keep_stores_in(request.getfixturevalue("postgres_databases"))
    yield engine
    await engine.close()
