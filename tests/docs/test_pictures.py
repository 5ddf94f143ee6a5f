"""The pictures of the documentation: drawn by the script, readable in light and dark, and free of anything private."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.loopback import ROOT
from tests.docs.pages import pages

FOLDER = ROOT / "docs/pictures"
FILES = sorted(FOLDER.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
SCRIPT = runpy.run_path(str(ROOT / "scripts/pictures.py"))


def test_the_pictures_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert SCRIPT["main"](["--check"]) == 0, capsys.readouterr().out
    assert {path.stem for path in FILES} == {*SCRIPT["PICTURES"], "demo"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_picture_can_be_read_by_everyone(path: Path) -> None:
    source = path.read_text()
    root = ElementTree.fromstring(source)  # noqa: S314 - a file of this repository
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "title desc"
    for name in ("title", "desc"):
        element = root.find(f"{SVG}{name}")
        assert element is not None
        assert element.get("id") == name
        assert element.text
    assert "prefers-color-scheme:dark" in source
    assert len(root.findall(f"{SVG}text")) >= 10, "text is text, not outlines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_picture_loads_nothing_and_has_nothing_private(path: Path) -> None:
    source = path.read_text()
    assert not re.search(r"url\(|@import|@font-face|href=|<script|<image", source)
    assert re.findall(r"https?://(?!127\.0\.0\.1:)\S+", source) == ['http://www.w3.org/2000/svg"']
    assert not re.search(r"/(?:home|root|Users|work|tmp|private|var)\b", source)
    assert "\x1b" not in source


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_page_shows_the_picture_and_says_what_is_on_it(path: Path) -> None:
    shown = [
        alt
        for page in pages()
        for alt, link in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.text)
        if (page.path.parent / link).resolve() == path
    ]
    assert shown
    assert all(len(alt) > 20 for alt in shown)


def test_the_recording_is_that_of_a_run_that_held_its_claims() -> None:
    root = ElementTree.fromstring((FOLDER / "demo.svg").read_text())  # noqa: S314 - a file of this repository
    rows = ["".join(text.itertext()) for text in root.findall(f"{SVG}text")]
    assert rows[0] == "$ perdure demo"
    assert any(re.search(r"kill -9 +worker \d+ is gone, in the middle of a model call", row) for row in rows)
    assert sum(row.startswith("  ✓ ") for row in rows) == 6
    assert not any("✗" in row for row in rows)


def test_a_text_that_does_not_fit_is_an_error() -> None:
    picture = SCRIPT["Picture"]("A title", "A description", 100)
    picture.box(24, 24, 100, 40, ("Workers",))
    with pytest.raises(ValueError, match="'as many of them as you like' takes"):
        picture.box(24, 24, 100, 40, ("Workers", "as many of them as you like"))
