"""Which run the beginning of an id means."""

from __future__ import annotations

import pytest

from perdure.cli.connection import match_run_id
from perdure.cli.output import get_exit_code
from perdure.errors import InvalidInputError, RunNotFoundError

IDS = ["reader-1a", "reader-1b", "reader-2", "reader", "other"]


@pytest.mark.parametrize(("prefix", "id"), [("reader-2", "reader-2"), ("o", "other"), ("reader", "reader")])
def test_a_unique_beginning_is_enough(prefix: str, id: str) -> None:
    assert match_run_id(prefix, IDS) == id


def test_several_are_named() -> None:
    with pytest.raises(
        InvalidInputError, match=r"2 runs begin with 'reader-1'\.\nGive more of the id: reader-1a"
    ) as error:
        match_run_id("reader-1", IDS)
    assert get_exit_code(error.value) == 2
    with pytest.raises(InvalidInputError, match=r"7 runs begin .*\n.*, …$"):
        match_run_id("r", [f"r{number}" for number in range(7)])


def test_none_is_not_found() -> None:
    with pytest.raises(RunNotFoundError) as error:
        match_run_id("zzz", IDS)
    assert get_exit_code(error.value) == 3


@pytest.mark.parametrize(
    ("prefix", "id"), [("ro", "root-1"), ("root-1/2/", "root-1/2/1"), ("own", "own/a"), ("root-1/1", "root-1/1")]
)
def test_the_subagents_of_a_run_do_not_stand_in_its_way(prefix: str, id: str) -> None:
    assert match_run_id(prefix, ["root-1/2/1", "root-1/1", "root-1", "root-1/2", "own/a"]) == id
