"""The tool in TypeScript: Temporal's own SDK on one side, perdure on the other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.docs.asked import Request, results
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call
from tests.support import npm

pytestmark = pytest.mark.server


async def test_a_tool_in_typescript(loopback: Loopback) -> None:
    source = EXAMPLES / "34_remote_tool"
    modules = await asyncio.to_thread(npm.packages, source, "the tool in TypeScript")
    folder = npm.copy(source, modules, loopback.folder / "remote")

    def rule(request: Request) -> Any:
        found = results(request)
        if not found:
            asked = [{"city": "Rome", "nights": 3}, {"city": "Bonn"}, {"city": "Rome", "nights": 31}]
            return [Call("price", one) for one in asked]
        rome = json.loads(found[0])
        assert rome.pop("quote"), "the activity's id"
        return f"{rome}, {found[1]}, {found[2]}"

    loopback.model.rule = rule
    worker = await loopback.spawn("npm", "start", "--silent", cwd=folder)
    out = succeeded(await loopback.python(source / "agent.py"))
    assert (
        out
        == "{'city': 'Rome', 'euros': 285}, Error: we have no hotel in Bonn, Vetoed: we book for 30 nights at most\n"
    )
    await loopback.kill(worker)
