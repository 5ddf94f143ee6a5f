"""The models of two examples, 32_compressor.py and 33_judges.py: what each agent of theirs says, by what it hears."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from perdure import Agent
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.messages import ToolCallPart
from tests.support.checks import results, users
from tests.support.examples import example

Model = Callable[[ModelRequest], Any]
JUDGES = ("rigour", "clarity", "notation")
FACT = "March"
"""The word of the compressor's text that must not be lost."""


def compressing() -> tuple[Agent, dict[Agent, Model]]:
    """The compressor, and what each of its agents says."""
    module = example("32_compressor.py")

    def shorten(request: ModelRequest) -> str:
        words = users(request.messages)[0].split()
        return " ".join(words[: len(words) * 2 // 3])

    def judge(request: ModelRequest) -> Any:
        version = users(request.messages)[0].partition(" / ")[2]
        return finish(lossy=FACT not in version, missing="" if FACT in version else FACT)

    def coordinate(request: ModelRequest) -> Any:
        original, heard = users(request.messages)[0], results(request.messages)
        if len(heard) % 2:
            return call("call_judge", task=f"{original} / {heard[-1]}")
        if heard and json.loads(heard[-1])["lossy"]:
            return heard[-4]  # the version before
        return call("call_shortener", task=heard[-2] if heard else original)

    return module.compressor, {module.compressor: coordinate, module.shortener: shorten, module.judge: judge}


def judging() -> tuple[Agent, dict[Agent, Model]]:
    """The coordinator of the judges, and what each of its agents says: notation objects to the first version."""
    module = example("33_judges.py")

    def edit(request: ModelRequest) -> str:
        return "Version 2" if "objects" in users(request.messages)[0] else "Version 1"

    def score(name: str) -> Model:
        def model(request: ModelRequest) -> Any:
            good = name != "notation" or "Version 2" in users(request.messages)[0]
            return finish(score=95 if good else 90, objection="" if good else "What is k?")

        return model

    def coordinate(request: ModelRequest) -> Any:
        heard = results(request.messages)
        if not heard:
            return numbered(heard, "write", task="Derive it.")
        if heard[-1].startswith("Version"):
            return [numbered(heard, "call_agent", agent_name=name, message=heard[-1]) for name in JUDGES]
        if min(json.loads(one)["score"] for one in heard[-3:]) > 90:
            return heard[-4]
        return numbered(heard, "write", task=f"{heard[-4]}. Notation objects: {heard[-1]}")

    judges = {judge: score(judge.name) for judge in module.judges}
    return module.coordinator, {module.coordinator: coordinate, module.editor: edit, **judges}


def numbered(heard: list[str], name: str, **arguments: str) -> ToolCallPart:
    """A call whose id is another one in each reply, also where another process makes it."""
    return ToolCallPart(id=f"call_{len(heard)}_{arguments.get('agent_name', name)}", name=name, arguments=arguments)


def put_in_place(models: Mapping[Agent, Model]) -> dict[str, ScriptedProvider]:
    """Let each agent be answered by its model; the providers, by the agents' names."""
    providers = {agent.name: ScriptedProvider(model) for agent, model in models.items()}
    for agent in models:
        agent.provider = providers[agent.name]
    return providers
