"""Fixture ``api``: one wire format after the other, at a server that we did not write. See aimock.py. Beside it the
clients of front ends: see front_ends.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import front_ends
from tests.conformance.aimock import FOLDER, Aimock, running
from tests.conformance.formats import FORMATS, Api
from tests.conformance.front_ends import FrontEnd
from tests.support import npm


@pytest.fixture(scope="session")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    """The server, for the whole session."""
    modules = npm.packages(FOLDER, "the four wire formats against a server of another project")
    with running(modules, tmp_path_factory.mktemp("aimock")) as server:
        yield server


@pytest.fixture(params=FORMATS, ids=lambda one: one.name)
def api(request: Any, aimock: Aimock, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A format, its provider's variables pointing to the server."""
    api = Api(request.param, aimock)
    monkeypatch.setenv(api.format.url_env, aimock.url + api.format.path)
    monkeypatch.setenv(api.format.key_env, "sk-conformance-0123456789")
    return api


@pytest.fixture(scope="session")
def node_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the clients' programs, with their packages."""
    modules = npm.packages(front_ends.FOLDER, "AG-UI and the Vercel AI SDK against their own clients")
    return npm.copy(front_ends.FOLDER, modules, tmp_path_factory.mktemp("front-ends") / "programs")


@pytest.fixture
async def agui(node_programs: Path) -> AsyncIterator[FrontEnd]:
    """The client of AG-UI."""
    async with front_ends.start(node_programs, "agui.mjs") as client:
        yield client


@pytest.fixture
async def chat(node_programs: Path) -> AsyncIterator[FrontEnd]:
    """The client of the Vercel AI SDK."""
    async with front_ends.start(node_programs, "chat.mjs") as client:
        yield client
