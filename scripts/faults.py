"""Writes docs/faults.md: what perdure does under each fault, and the tests that make the fault.

A row comes from marks at tests, `@pytest.mark.fault(SUBJECT, FAULT, EFFECT)`. Several tests may show one fault: one of
them has its effect, the others leave it out. The page has a section for each subject of :data:`SUBJECTS`, with the rows
in the order of the files and of the tests in them.

Usage: faults.py [--check]    `--check` writes nothing, and fails if the page is not up to date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
_REGION = ("<!-- faults -->\n", "<!-- /faults -->\n")
SUBJECTS = ("Workers", "Temporal", "The store", "Models and tools", "Clients", "Sizes", "Borders")
"""In the order of the page."""


class MarkError(Exception):
    """A mark that makes no row."""


@dataclass
class Fault:
    """A row: ``effect`` is empty until a test that has it is read."""

    subject: str
    effect: str = ""
    tests: list[str] = field(default_factory=list)
    """Links, as Markdown."""


def read_faults(folder: Path) -> dict[str, Fault]:
    """Read the marks of all tests under a folder, by the text of their fault.

    Raises:
        MarkError: A mark has other than literal text, its subject is unknown, or not one test gives a fault its
            effect.
    """
    faults: dict[str, Fault] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for test, arguments in _read_marks(path):
            where = f"{path.relative_to(ROOT)}: {test}"
            if len(arguments) not in (2, 3) or arguments[0] not in SUBJECTS:
                raise MarkError(f"{where}: write fault(SUBJECT, FAULT) or fault(SUBJECT, FAULT, EFFECT)")
            subject, name, *effect = arguments
            fault = faults.setdefault(name, Fault(subject))
            if fault.subject != subject or (effect and fault.effect):
                raise MarkError(f"{where}: another test has another subject or effect for {name!r}")
            fault.effect = effect[0] if effect else fault.effect
            fault.tests.append(f"[`{test}`](../{path.relative_to(ROOT)})")
    if missing := [name for name, fault in faults.items() if not fault.effect]:
        raise MarkError(f"no test gives the effect of {missing}")
    return faults


def _read_marks(path: Path) -> Iterator[tuple[str, list[str]]]:
    source = path.read_text(encoding="utf-8")
    if "mark.fault(" not in source:
        return
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                yield node.name, [str(ast.literal_eval(argument)) for argument in mark.args]


def render_page(page: str, faults: dict[str, Fault]) -> str:
    """Return the page with its generated part replaced."""
    head, rest = page.split(_REGION[0])
    tail = rest.split(_REGION[1])[1]
    sections = []
    for subject in SUBJECTS:
        rows = [
            f"| {name} | {fault.effect} | {'<br>'.join(fault.tests)} |"
            for name, fault in faults.items()
            if fault.subject == subject
        ]
        sections.append("\n".join([f"## {subject}\n", "| fault | effect | shown by |", "|---|---|---|", *rows, ""]))
    return head + _REGION[0] + "\n" + "\n".join(sections) + "\n" + _REGION[1] + tail


def main() -> int:
    """Write or check the page."""
    page = PAGE.read_text(encoding="utf-8")
    try:
        written = render_page(page, read_faults(ROOT / "tests"))
    except MarkError as error:
        print(error)
        return 1
    if written == page:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/faults.md is not what the marks of the tests say: run `make fmt`")
        return 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
