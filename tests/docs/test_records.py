"""The form of what is written for the record: the changelog and the decisions."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
MAX_LINES = 60
MAX_COLUMNS = 250
"""Of a line of the changelog: sixty lines of any length would be no bound."""


def list_releases() -> list[str]:
    return re.split(r"^(?=## )", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("release", list_releases(), ids=lambda text: text.partition("\n")[0])
def test_a_release_of_the_changelog_has_at_most_sixty_lines(release: str) -> None:
    lines = release.splitlines()
    assert len(lines) <= MAX_LINES, f"{len(lines)} lines; write into the subject's bullet, and move details to its page"
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []
