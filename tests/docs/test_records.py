"""The form of what is written for the record: the changelog and the decisions."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
HEADINGS = ["## Context", "## Decision", "## Consequences", "## Rejected"]
FIRST_BY_TEMPLATE = 33
MAX_LINES = 60
MAX_DECISION_COLUMNS = 150
MAX_COLUMNS = 250
"""Of a line of the changelog: sixty lines of any length would be no bound."""


def list_releases() -> list[str]:
    return re.split(r"^(?=## )", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("release", list_releases(), ids=lambda text: text.partition("\n")[0])
def test_a_release_of_the_changelog_has_at_most_sixty_lines(release: str) -> None:
    lines = release.splitlines()
    assert len(lines) <= MAX_LINES, f"{len(lines)} lines; write into the subject's bullet, and move details to its page"
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


def find_faults(path: Path) -> list[str]:
    """What keeps a decision from being as docs/decisions/README.md says."""
    lines = path.read_text(encoding="utf-8").splitlines()
    faults = []
    if not re.match(rf"# {path.name[:3]} \S", lines[0]):
        faults.append("the title must be the number, without a colon, and the decision")
    if [line for line in lines if line.startswith("## ")] != HEADINGS:
        faults.append(f"the headings must be {HEADINGS}")
    if len(lines) > MAX_LINES:
        faults.append(f"it has {len(lines)} lines")
    if any(len(line) > MAX_DECISION_COLUMNS and not line.startswith("|") for line in lines):
        faults.append(f"a line has more than {MAX_DECISION_COLUMNS} characters")
    return faults


@pytest.mark.parametrize("path", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda path: path.name[:3])
def test_a_decision_keeps_to_the_template(path: Path) -> None:
    number = int(path.name[:3])
    if number >= FIRST_BY_TEMPLATE:
        assert find_faults(path) == []
