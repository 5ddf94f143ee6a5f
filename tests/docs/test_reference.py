"""The API reference is what the sources say, and has every public name."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import griffe
import pytest

import perdure
import perdure.testing
from perdure import errors
from perdure.errors import PerdureError
from tests.docs.loopback import ROOT

PAGES = ROOT / "docs/reference"
SCRIPT = runpy.run_path(str(ROOT / "scripts/reference.py"))
write_page, main = SCRIPT["write_page"], SCRIPT["main"]


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


def test_the_table_of_dialects_is_that_of_the_code() -> None:
    assert SCRIPT["render_dialects"]() in (PAGES / "dialects.md").read_text(), "run `make fmt`"


def region(words: str, body: str = "") -> str:
    return f"<!-- api {words} -->\n{body}<!-- /api -->"


@pytest.mark.slow
def test_the_script(subtests: pytest.Subtests, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One test, and so one process: it reads all sources, which takes seconds. That the pages are up to date is checked
    by `make lint`."""
    for check in (_check_region, _check_defaults, _check_errors):
        with subtests.test(check.__name__):
            check()
    with subtests.test("a stale page fails, and the command to run is named"):
        page = tmp_path / "page.md"
        page.write_text(f"# Page\n\n{region('perdure.tools.tool.tool')}\n")
        assert main(["--check", str(page)]) == 1
        assert "run `make fmt`" in capsys.readouterr().out
        assert main([str(page)]) == 0
        assert "### " not in page.read_text()
        assert "## tool\n" in page.read_text()
        assert main(["--check", str(page)]) == 0


def _check_region() -> None:
    """A region is written, and the rest stays."""
    old = region("perdure.client.turn.Turn", "Old.\n")
    page = f"# Client\n\nBy hand.\n\n## Turns\n\n{old}\n\nAlso by hand.\n"
    written = write_page(page)
    assert written.startswith("# Client\n\nBy hand.\n\n## Turns\n\n<!-- api perdure.client.turn.Turn -->\n\n### Turn\n")
    assert written.endswith("<!-- /api -->\n\nAlso by hand.\n")
    assert "\n#### Turn.result\n\n```py\nasync def result(" in written
    assert "Old." not in written
    assert write_page(written) == written


def _check_defaults() -> None:
    """Options have their defaults and meaning, also those of a base."""
    written = write_page(region("perdure.client.start.SendOptions defaults=perdure.client.client.Client.send"))
    assert "\n- `id: str`: The conversation's id: required.\n" in written
    assert "\n- `history: History | None = None`: " in written
    written = write_page(region("perdure.client.start.StartOptions defaults=perdure.client.client.Client.start"))
    assert '\n- `if_exists: Literal["error", "attach"] = "error"`: ' in written
    with pytest.raises(Exception, match=r"Client\.send has no parameter mode"):
        write_page(region("perdure.client.start.StartOptions defaults=perdure.client.client.Client.send"))


def _check_errors() -> None:
    """A page that asks for what does not exist is an error."""
    for words, error in (
        ("perdure.client.turn.Gone", "does not exist"),
        ("perdure.client.turn.Turn hide=gone,result", "has no gone to hide"),
        ("perdure.client.turn.Turn inherit=stream,result", "does not inherit result"),
        ("perdure.client.turn.Turn level=3", "unknown option 'level=3'"),
    ):
        with pytest.raises(Exception, match=error):
            write_page(region(words))


FUNCTION = '''
def pay(amount: int | None, currency: str = "EUR") -> None:
    """Pay.

    Args:
        amount: Cents, as ``amount``
            or none.
        CURRENCY

    Raises:
        PayError, MoneyError: It is refused.
    """
'''


def test_a_section_of_arguments_is_a_table_with_types_and_defaults() -> None:
    with griffe.temporary_visited_module(FUNCTION.replace("CURRENCY", "currency: The unit.")) as module:
        text = SCRIPT["render_docstring"](module["pay"])
    assert "| `amount` | `int \\| None` | required | Cents, as `amount` or none. |" in text
    assert '| `currency` | `str` | `"EUR"` | The unit. |' in text
    assert text.endswith("Raises:\n\n- `PayError`, `MoneyError`: It is refused.")


@pytest.mark.parametrize(
    ("line", "fault"),
    [("", "does not say what currency means"), ("currency: A.\n        unit: B.", "has no parameter unit")],
)
def test_a_section_of_arguments_has_each_parameter_and_no_other(line: str, fault: str) -> None:
    with (
        griffe.temporary_visited_module(
            FUNCTION.replace("        CURRENCY\n", f"        {line}\n" if line else "")
        ) as module,
        pytest.raises(SCRIPT["PageError"], match=fault),
    ):
        SCRIPT["render_docstring"](module["pay"])


@pytest.mark.parametrize(("page", "counts"), [("agent", [26]), ("client", [17, 16]), ("worker", [19])])
def test_agents_starts_messages_and_workers_have_tables(page: str, counts: list[int]) -> None:
    """``Agent``, ``Client.start``, ``Client.send`` and ``Worker``, with a row for each argument."""
    text = (PAGES / f"{page}.md").read_text()
    tables = re.findall(r"^\| argument .+\n\|-.+\n((?:\|.+\n)+)", text, re.MULTILINE)
    assert [len(rows.splitlines()) for rows in tables] == counts
