"""Every member that an option of a page under docs/reference/ names exists.

The pages hide internal methods of public classes by name (`filters: ["!^_", "!^(bind|definition)$"]`). mkdocstrings
searches each pattern in the names of the members and says nothing of one that matches none: after a renaming the method
would stand in the public reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import griffe
import pytest
import yaml

from tests.docs.loopback import ROOT

BLOCK = re.compile(r"^::: (\S+)\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE)
PRIVATE = "!^_"
HIDDEN = re.compile(r"!\^(?:\((\w+(?:\|\w+)*)\)|(\w+))\$")
"""`!^name$` or `!^(name|name)$`: the one form that says which members it hides."""


class Block(NamedTuple):
    """A `:::` block, and the members that its options name."""

    page: str
    path: str
    named: frozenset[str]
    inherited: bool


def names_in_filters(filters: list[str]) -> Iterator[str]:
    for pattern in filters:
        if pattern != PRIVATE:
            hidden = HIDDEN.fullmatch(pattern)
            assert hidden, f"{pattern!r}: a filter is {PRIVATE!r}, '!^name$' or '!^(name|name)$'"
            yield from (hidden[1] or hidden[2]).split("|")


def read_blocks(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page that name members."""
    for path, indented in BLOCK.findall(f"{text}\n"):
        options: dict[str, Any] = (yaml.safe_load(indented) or {}).get("options", {})
        named = [*names_in_filters(options.get("filters", []))]
        for option in ("members", "inherited_members"):
            named += options[option] if isinstance(options.get(option), list) else []
        if named:
            yield Block(page, path, frozenset(named), bool(options.get("inherited_members")))


@cache
def package() -> griffe.ModulesCollection:
    """What mkdocstrings reads: the sources, never the imported package."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], allow_inspection=False)
    loader.load("perdure")
    loader.resolve_aliases(implicit=True, external=False)
    return loader.modules_collection


def unknown_members(block: Block) -> list[str]:
    """The names that the object of the block does not have; inherited ones count where the page shows them."""
    subject = package()[block.path]
    return sorted(block.named - set(subject.all_members if block.inherited else subject.members))


BLOCKS = [
    block
    for page in sorted((ROOT / "docs/reference").glob("*.md"))
    for block in read_blocks(page.name, page.read_text())
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}-{block.path}")
def test_the_members_that_a_page_names_exist(block: Block) -> None:
    assert not unknown_members(block), "renamed or gone: change the option on the page"


def test_a_name_that_is_gone_is_found() -> None:
    page = """
::: perdure.Client
    options: {inherited_members: true, filters: ["!^_", "!^(start|as_message)$"]}

::: perdure.hooks.step.Step
    options:
      members: [trim, changes]

::: perdure.tools.tool.tool
"""
    blocks = list(read_blocks("page.md", page))
    assert [unknown_members(block) for block in blocks] == [["as_message"], ["changes"]]


@pytest.mark.parametrize("pattern", ["!^as_.*$", "!message", "name", "^name$"])
def test_a_filter_that_names_no_member_is_refused(pattern: str) -> None:
    with pytest.raises(AssertionError, match="a filter is"):
        list(names_in_filters([PRIVATE, pattern]))
