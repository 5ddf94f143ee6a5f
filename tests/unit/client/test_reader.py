"""Where a reader begins."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.client.event_reader import EventReader
from perdure.errors import InvalidInputError
from perdure.testing import MemoryStore


@pytest.mark.parametrize("after", ["3", None, 1.5, True])
def test_a_place_that_is_no_number(after: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"(?s)after is the number .*event\.seq"):
        EventReader("a", MemoryStore(), after)
