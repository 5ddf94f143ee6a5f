"""PARITY.md A17, B8, B9: the examples are there, run by the suite, and do what their rows say."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent
from perdure.ports.model import ModelRequest
from perdure.types.interface import Response
from tests.support.checks import assert_closed, results, users
from tests.support.committees import FACT, JUDGES, Model, compressing, judging, put_in_place
from tests.support.engine import Engine
from tests.support.examples import EXAMPLES
from tests.support.wait import eventually

ROW = {
    "simple": "01_hello.py",
    "tools": "02_tools.py",
    "presets": "41_presets.py",
    "hooks": "20_hooks.py",
    "multi-agent": "42_multi_agent.py",
    "custom provider": "10_custom_provider.py",
    "provider settings": "43_settings.py",
    "forced finish": "44_forced_finish.py",
    "delegation": "45_delegation.py",
    "custom endpoints": "15_local_model.py",
    "history": "46_history.py",
    "injection": "47_injection.py",
}
"""What A17 names, and the program that shows it."""
TESTS = Path(__file__).parent.parent / "docs"


def run_by_tests() -> Iterator[str]:
    """The programs that a test of tests/docs runs: `await loopback.python(EXAMPLES / "…")`, or a run of it."""
    for path in TESTS.glob("test_*example*.py"):
        for test in ast.parse(path.read_text()).body:
            if isinstance(test, ast.AsyncFunctionDef) and test.name.startswith("test_"):
                yield from re.findall(r"EXAMPLES / '([^']+)'", ast.unparse(test))


def test_a17_each_example_is_a_program_that_the_suite_runs() -> None:
    run, listed = set(run_by_tests()), (EXAMPLES / "README.md").read_text().splitlines()
    for what, file in ROW.items():
        compile((EXAMPLES / file).read_text(), file, "exec")
        assert file in run, what
        [row] = [line for line in listed if f"]({file})" in line]
        assert f"examples/{file}`" in row, "with the command that runs it"


async def answer(engine: Engine, agent: Agent, models: dict[Agent, Model], message: str) -> Response:
    """What ``agent`` comes to on the scripted models. ``test_subagent_examples.py`` runs such programs on a server."""
    put_in_place(models)
    async with engine.served(agent) as client:
        return await (await client.start(agent, message)).result()


async def test_b8_a_text_is_compressed_until_it_would_lose_too_much(engine: Engine) -> None:
    compressor, models = compressing()
    text = "The meeting is on Monday, 3 March, at ten o'clock in the morning, in the large room on the second floor."
    response = await answer(engine, compressor, models, text)
    heard = results(response.messages)
    versions, losses = heard[::2], [json.loads(one)["lossy"] for one in heard[1::2]]
    assert losses == [False] * (len(versions) - 1) + [True], "the first version that is lossy ends it"
    assert len(versions) > 2
    assert [len(one.split()) for one in versions] == sorted((len(one.split()) for one in versions), reverse=True)
    assert response.content == versions[-2], "the shortest that was not lossy"
    assert FACT in response.content
    assert FACT not in versions[-1]
    called = [one.name for message in response.messages for one in message.tool_calls]
    assert called == ["call_shortener", "call_judge"] * len(versions)
    assert_closed(response.messages)


class Present:
    """How many judges are asked at the same time; the first three wait for each other."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._all = asyncio.Event()

    def wrap(self, name: str, model: Model) -> Model:
        async def asked(request: ModelRequest) -> Any:
            self.names.append(name)
            if len(self.names) == len(JUDGES):
                self._all.set()
            await asyncio.wait_for(self._all.wait(), 30)
            return model(request)

        return asked


async def test_b9_a_derivation_is_edited_until_three_judges_score_above_90(engine: Engine) -> None:
    coordinator, models = judging()
    present = Present()
    waiting: Callable[[Agent, Model], Model] = lambda agent, model: (  # noqa: E731
        present.wrap(agent.name, model) if agent.name in JUDGES else model
    )
    models = {agent: waiting(agent, model) for agent, model in models.items()}
    response = await answer(engine, coordinator, models, "Derive the Fourier transform of a Gaussian.")
    assert response.content == "Version 2"
    assert sorted(present.names[:3]) == sorted(present.names[3:]) == sorted(JUDGES), "three at once, in two rounds"
    heard = results(response.messages)
    assert [one for one in heard if one.startswith("Version")] == ["Version 1", "Version 2"]
    rounds = [json.loads(one)["score"] for one in heard if one.startswith("{")]
    assert rounds == [95, 95, 90, 95, 95, 95], "90 is not above 90; results stand in the order of the calls"
    assert users(response.messages) == ["Derive the Fourier transform of a Gaussian."]
    assert_closed(response.messages)


@pytest.mark.slow
@pytest.mark.server
async def test_b9_a_judge_killed_with_its_worker_goes_on(engine: Engine) -> None:
    lost = await engine.process("judges")
    client = await engine.client()
    run = await client.start("coordinator", "Derive it.")

    async def two_of_three() -> bool:
        asked = all(engine.ledger.entries(name) for name in JUDGES)
        return asked and [(await one.status()).state for one in await run.children()].count("completed") == 3

    await eventually(two_of_three, what="the editor and two judges are done, and the third is asked")
    await lost.kill()
    await engine.process("judges")
    response = await run.result()
    assert response.content == "Version 2"
    asked = {name: len(engine.ledger.entries(name)) for name in ("coordinator", "editor", *JUDGES)}
    assert asked == {"coordinator": 5, "editor": 2, "rigour": 2, "clarity": 2, "notation": 3}, (
        "only the call in flight is made again"
    )
    assert_closed(response.messages)
    for child in await run.children():
        assert_closed(await child.transcript())
