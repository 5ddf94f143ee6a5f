"""The model of a cluster's agents. It checks the conversation of each request: what is lost or doubled shows there."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import Any

from tests.servers.model_server import Call, Reply
from tests.support.chat_room import ASKED, ChatModel, said

COUNTED = re.compile(r"run (\d+)")
UNKNOWN = "OutcomeUnknown: work"
"""How the result of a call begins whose worker was lost while it ran."""


class ClusterModel(ChatModel):
    """Has users answered as :class:`ChatModel`, and runs of tests/workers/counting.py call a tool in each iteration."""

    def __init__(self, iterations: int = 12) -> None:
        super().__init__()
        self.iterations = iterations
        self.counted: dict[str, list[float]] = defaultdict(list)
        """By run and iteration: when it was asked."""
        self.results: dict[str, str] = {}
        """By run and iteration: the tool's result, as the model was given it."""

    def __call__(self, request: dict[str, Any]) -> Reply:
        first = next(part for role, part in said(request) if role == "user")
        if ASKED.fullmatch(first):
            return super().__call__(request)
        if found := COUNTED.fullmatch(first):
            return self._count(found[1], said(request)[1:])
        return Reply(text="Ask me for: run 1")

    def _count(self, run: str, spoken: list[tuple[str, str]]) -> Reply:
        n = len(spoken) // 2
        self.counted[f"{run}-{n}"].append(time.time())
        if [role for role, _ in spoken] != ["assistant", "tool"] * n:
            self.wrong.append(f"run {run}, iteration {n}: {spoken}")
        for before, (_, result) in enumerate(spoken[1::2]):
            key = f"{run}-{before}"
            if self.results.setdefault(key, result) != result or not self._is_right(key, result):
                self.wrong.append(f"{key}: {result!r}, before {self.results[key]!r}")
        if n >= self.iterations:
            return Reply(text=f"All done, run {run}.", delay=0.01)
        return Reply(calls=[Call(name_tool(n), {"n": f"{run}-{n}"}, id=f"call_{n}")], delay=0.1)

    @staticmethod
    def _is_right(key: str, result: str) -> bool:
        tool = name_tool(int(key.partition("-")[2]))
        return result == f"{tool}ed {key}" or (tool == "work" and result.startswith(UNKNOWN))


def name_tool(iteration: int) -> str:
    """The tool of an iteration: each fourth is one that may be called again."""
    return "look" if iteration % 4 == 3 else "work"
