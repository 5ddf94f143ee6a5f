"""The tools of an agent: order, lookup, one name once."""

from __future__ import annotations

import pytest

from perdure.errors import DefinitionError
from perdure.tools import Toolbox, tool


def search(query: str) -> str:
    """Search."""
    return query


@tool
def fetch(url: str) -> str:
    """Fetch."""
    return url


def test_order_lookup_and_specs() -> None:
    box = Toolbox([search, fetch, tool(search, name="again")])
    assert [one.name for one in box] == ["search", "fetch", "again"]
    assert [spec.name for spec in box.specs] == ["search", "fetch", "again"]
    assert box.specs is box.specs
    assert box.get("fetch") is fetch
    assert box.get("nothing") is None
    assert "search" in box
    assert "nothing" not in box
    assert len(box) == 3


def test_an_empty_toolbox() -> None:
    assert (list(Toolbox()), Toolbox().specs, len(Toolbox([]))) == ([], (), 0)


def test_two_tools_of_one_name() -> None:
    with pytest.raises(DefinitionError, match="two tools are called 'fetch'") as caught:
        Toolbox([search, fetch, tool(search, name="fetch")])
    for fn in (search, fetch.fn):
        assert f"{__file__}:{fn.__code__.co_firstlineno}" in caught.value.message
    assert 'name="' in (caught.value.hint or "")
    with pytest.raises(DefinitionError, match="two tools are called 'search'"):
        Toolbox([search, search])
