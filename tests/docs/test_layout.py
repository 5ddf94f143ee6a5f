"""The list of layers in pyproject.toml has all of perdure, and AGENTS.md shows the same list."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import grimp

from tests.docs.loopback import ROOT

PACKAGE = ROOT / "perdure"
LAYERS, *PROTECTED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
SEPARATORS = r" [|:] "


def own_layers() -> list[str]:
    """The lines of the list that are not of outside systems: `contrib | mcp | toolsets`."""
    return [line.replace("perdure.", "") for line in LAYERS["layers"] if not line.startswith("(")]


def outside_systems() -> set[str]:
    lines = [line for line in LAYERS["layers"] if line.startswith("(")]
    return {name.strip("()") for line in lines for name in re.split(SEPARATORS, line)}


def is_part(path: Path) -> bool:
    """A package or module of perdure with a place in the list; `__init__.py` and `__main__.py` have none."""
    return (path / "__init__.py").exists() or (path.suffix == ".py" and not path.stem.startswith("__"))


def test_every_part_has_its_place() -> None:
    listed = [name for line in own_layers() for name in re.split(SEPARATORS, line)]
    assert sorted(listed) == sorted(path.stem for path in PACKAGE.iterdir() if is_part(path))


def test_agents_md_shows_the_list() -> None:
    layout = (ROOT / "AGENTS.md").read_text().partition("\n## Layout")[2]
    shown = layout.partition("```\n")[2].partition("```")[0].splitlines()
    assert [re.split(" {2,}", line)[0] for line in shown] == own_layers()


def test_sdks_of_adapters_are_protected() -> None:
    """import-linter refuses a name that it does not find: asyncpg, which nothing imports yet, and anthropic, which
    ``providers.sdk`` imports by its name."""
    graph: Any = grimp.build_graph("perdure", include_external_packages=True, cache_dir=None)
    protected = {name for contract in PROTECTED for name in contract["protected_modules"]}
    engine_may = {"typer", "prompt_toolkit", "temporalio", "mcp", "rich", "starlette", "uvicorn", "sse_starlette"}
    engine_may |= {"jinja2", "markupsafe", "markdown_it", "uvloop"}
    assert (outside_systems() - engine_may) & set(graph.modules) <= protected
