"""Fixture ``api``: one wire format after the other, at a server that we did not write, see aimock.py. And clients of
front ends, see tests/support/front_ends.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.aimock import FOLDER, Aimock, running
from tests.conformance.formats import FORMATS, Api
from tests.support import npm
from tests.support.front_ends import FrontEnd, front_end


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


@pytest.fixture
async def agui(tmp_path: Path) -> AsyncIterator[FrontEnd]:
    """The client of AG-UI."""
    async with front_end("agui.mjs", tmp_path) as client:
        yield client


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[FrontEnd]:
    """The client of the Vercel AI SDK."""
    async with front_end("chat.mjs", tmp_path) as client:
        yield client
