"""What pages and examples import is installed by an extra of perdure: a reader has nothing else."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"^\s*(?:import|from) ([a-zA-Z_]\w*)", re.MULTILINE)
SHOWN = {"pydantic_evals", "pytest", "uvicorn"}
"""Named with their installation where they are used."""


def collect_installed() -> set[str]:
    """The distributions that ``perdure[all]`` installs."""
    found: set[tuple[str, str]] = set()
    queue = [Requirement("perdure[all]")]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        for extra in ["", *requirement.extras]:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            try:
                needed = [Requirement(text) for text in requires(name) or ()]
            except PackageNotFoundError:
                continue
            queue += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def iter_imports() -> Iterator[tuple[str, str]]:
    for page in sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md"), ROOT / "README.md"]):
        for block in _BLOCK.findall(page.read_text()):
            yield from ((page.name, name) for name in _IMPORT.findall(block))
    for example in sorted((ROOT / "examples").rglob("*.py")):
        for node in ast.walk(ast.parse(example.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            yield from ((example.name, name.partition(".")[0]) for name in names)


def test_what_is_imported_is_installed_by_an_extra() -> None:
    installed, distributions = collect_installed(), packages_distributions()
    missing = {
        (where, name)
        for where, name in iter_imports()
        if name not in sys.stdlib_module_names | SHOWN and name in distributions
        and not {canonicalize_name(one) for one in distributions[name]} & installed
    }  # fmt: skip
    assert missing == set()
