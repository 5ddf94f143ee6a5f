"""Errors cross Temporal by the names of their classes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import perdure
from perdure import errors


def test_the_class_of_another_module_does_not_hide_one_of_perdure() -> None:
    class RateLimitError(errors.PerdureError):
        """Of an author's program."""

    class OfAnAuthorError(errors.PerdureError):
        """The same, under a name of its own."""

    assert type(errors.build_error("RateLimitError", "slow down")) is errors.RateLimitError
    assert type(errors.build_error("OfAnAuthorError", "no")) is OfAnAuthorError
    assert str(errors.build_error("NothingError", "no")) == "NothingError: no"
    assert RateLimitError.__name__ == "RateLimitError"


def test_each_error_of_perdure_has_a_name_of_its_own() -> None:
    folder = Path(perdure.__file__).parent
    texts = (path.read_text() for path in folder.rglob("*.py"))
    names = Counter(name for text in texts for name in re.findall(r"^\s*class (\w+Error)\b", text, re.MULTILINE))
    assert names["RateLimitError"] == 1
    assert {name for name, count in names.items() if count > 1} == set()
