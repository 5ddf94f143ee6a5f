"""The pages on events name every event, and nothing else."""

from __future__ import annotations

import re
from typing import get_args

from perdure.events import EVENT_TYPES, Event
from tests.docs.loopback import ROOT


def test_the_how_to_names_every_type() -> None:
    page = (ROOT / "docs/how-to/events.md").read_text()
    table = page.partition("| type | says |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(EVENT_TYPES)


def test_the_reference_has_every_type_with_its_fields() -> None:
    page = (ROOT / "docs/reference/events.md").read_text()
    there = set(re.findall(r"^<!-- api perdure\.events\.(\w+) fields=all -->$", page, re.MULTILINE))
    missing = [kind.__name__ for kind in get_args(get_args(Event)[0]) if kind.__name__ not in there]
    assert missing == []
