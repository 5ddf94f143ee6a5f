"""Every row of what others do has a test here that is named after it: ``test_a8_…``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROWS = [*(f"a{n}" for n in range(1, 18)), *(f"b{n}" for n in range(1, 10)), *(f"c{n}" for n in range(1, 11))]
ROWS += [f"d{n}" for n in range(1, 8)]


@pytest.mark.parametrize("row", ROWS)
def test_the_row_has_a_test_named_after_it(row: str) -> None:
    named = re.compile(rf"^(?:async )?def test_{row}_\w+\(", re.MULTILINE)
    assert any(named.search(path.read_text()) for path in Path(__file__).parent.glob("test_*.py"))
