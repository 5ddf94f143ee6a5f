"""The program under examples/ whose conversation is kept short, as a process."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tests.docs.asked import Request, results, users
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = pytest.mark.server


async def test_compaction(loopback: Loopback) -> None:
    heard: list[str] = []
    pages = itertools.count(1)

    def rule(request: Request) -> Any:
        heard.extend(results(request))
        known = any("third plank" in text for text in heard)
        if users(request)[-1].startswith("Sum up"):
            return "The key is under the third plank." if known else "Nothing so far."
        if any("no such page" in text for text in results(request)):
            return "Under the third plank." if known else "I do not know."
        return Call("page", {"number": next(pages)})

    loopback.model.rule = rule
    answer, *rest = succeeded(await loopback.python(EXAMPLES / "24_compaction.py")).splitlines()
    assert answer == "Under the third plank."
    *compacted, counts = rest
    assert compacted
    assert all(re.fullmatch(r"\d+ messages became \d+", line) for line in compacted)
    now, in_all = map(int, re.findall(r"\d+", counts))
    assert now < in_all
    assert in_all == 1 + 1 + 13 * 2 + 1 + len(compacted), "instructions, question, 13 pages, answer, summaries"
