"""The API reference is what the sources say, and has every public name."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import perdure
import perdure.testing
from perdure import errors
from perdure.errors import PerdureError
from tests.docs.loopback import ROOT

PAGES = ROOT / "docs/reference"
SCRIPT = runpy.run_path(str(ROOT / "scripts/reference.py"))
write_page, main = SCRIPT["write_page"], SCRIPT["main"]


def test_the_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_the_pages_have_every_public_name() -> None:
    text = "".join(path.read_text() for path in PAGES.glob("*.md"))
    documented = set(re.findall(r"^#+ (\w+)$", text, re.MULTILINE))
    raised = {
        value.__name__
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, PerdureError) and value.__module__ == errors.__name__
    }
    for public in (set(perdure.__all__) - {"Abort"}, set(perdure.testing.__all__), raised):
        assert public <= documented, f"docs/reference lacks {sorted(public - documented)}"
    assert "`Abort` is [`AbortError`]" in text


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_options_that_a_signature_names_are_on_its_page(path: Path) -> None:
    text = path.read_text()
    for name in set(re.findall(r"Unpack\[(\w+)\]", text)):
        (options,) = re.findall(rf"^#+ {name}\n\n(.+?)^<!-- /api -->", text, re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"^- `\w+: .+`: [A-Z`].+", options, re.MULTILINE)) >= 8
    assert not re.search(r"= _\w+[,)]", text), "a private name says nothing"


def test_options_have_their_defaults_and_meaning(tmp_path: Path) -> None:
    written = write_page(region("perdure.client.start.SendOptions defaults=perdure.client.client.Client.send"))
    assert "\n- `id: str`: The conversation's id: required.\n" in written
    assert "\n- `history: History | None = None`: " in written, "also those of its base"
    written = write_page(region("perdure.client.start.StartOptions defaults=perdure.client.client.Client.start"))
    assert '\n- `if_exists: Literal["error", "attach"] = "error"`: ' in written
    with pytest.raises(Exception, match=r"Client\.send has no parameter mode"):
        write_page(region("perdure.client.start.StartOptions defaults=perdure.client.client.Client.send"))


def region(words: str, body: str = "") -> str:
    return f"<!-- api {words} -->\n{body}<!-- /api -->"


def test_a_region_is_written_and_the_rest_stays() -> None:
    old = region("perdure.client.turn.Turn", "Old.\n")
    page = f"# Client\n\nBy hand.\n\n## Turns\n\n{old}\n\nAlso by hand.\n"
    written = write_page(page)
    assert written.startswith("# Client\n\nBy hand.\n\n## Turns\n\n<!-- api perdure.client.turn.Turn -->\n\n### Turn\n")
    assert written.endswith("<!-- /api -->\n\nAlso by hand.\n")
    assert "\n#### Turn.result\n\n```py\nasync def result(" in written
    assert "Old." not in written
    assert write_page(written) == written


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("perdure.client.turn.Gone", "does not exist"),
        ("perdure.client.turn.Turn hide=gone,result", "has no gone to hide"),
        ("perdure.client.turn.Turn inherit=stream,result", "does not inherit result"),
        ("perdure.client.turn.Turn level=3", "unknown option 'level=3'"),
    ],
)
def test_a_page_that_asks_for_what_is_not_there_is_an_error(words: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        write_page(region(words))


def test_a_stale_page_fails_and_the_command_to_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{region('perdure.tools.tool.tool')}\n")
    assert main(["--check", str(page)]) == 1
    assert "run `make fmt`" in capsys.readouterr().out
    assert main([str(page)]) == 0
    assert "### " not in page.read_text()
    assert "## tool\n" in page.read_text()
    assert main(["--check", str(page)]) == 0
