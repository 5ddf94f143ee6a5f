"""Refuses import cycles between modules, and between the parts of the package: its subpackages and top-level modules.

Imports in functions and under `if TYPE_CHECKING:` count, too: a reader must know both modules all the same. Of cycles
that share an import the shortest is printed.

Usage: lint_cycles.py [PACKAGE DIRECTORY]    (default: perdure, which the exceptions below are for)
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

Import = tuple[str, str]
"""The importing and the imported module or part."""

_OWNER = "the type of a public attribute: a run has its client, a turn its run"
ALLOWED: dict[Import, str] = {
    ("perdure.client.run", "perdure.client.client"): _OWNER,
    ("perdure.client.turn", "perdure.client.run"): _OWNER,
}
"""Imports that may close a cycle, each with its reason."""


def build_graph(package: Path) -> grimp.ImportGraph:
    sys.path.insert(0, str(package.resolve().parent))
    try:
        return grimp.build_graph(package.name, cache_dir=None)
    finally:
        sys.path.pop(0)


def merge_parts(graph: grimp.ImportGraph, package: str) -> grimp.ImportGraph:
    """The imports between the children of the package: a subpackage is one node."""
    merged = copy.deepcopy(graph)
    for part in graph.find_children(package):
        merged.squash_module(part)
    return merged


def list_imports(graph: grimp.ImportGraph) -> list[Import]:
    """All imports, but for those of a part from itself."""
    modules = sorted(graph.modules)
    imports = [
        (module, other) for module in modules for other in sorted(graph.find_modules_directly_imported_by(module))
    ]
    return [(module, other) for module, other in imports if module != other]


def find_cycles(graph: grimp.ImportGraph) -> Iterator[list[Import]]:
    """The imports of each cycle, the shortest cycles first; none has an import that an earlier one has."""
    chains = (graph.find_shortest_chain(other, module) for module, other in list_imports(graph))
    reported: set[Import] = set()
    for chain in sorted({chain for chain in chains if chain}, key=lambda chain: (len(chain), chain)):
        links = [*zip(chain, (*chain[1:], chain[0]), strict=True)]
        if reported.isdisjoint(links):
            reported.update(links)
            yield links


def find_statements(graph: grimp.ImportGraph, importer: str, imported: str) -> Iterator[str]:
    """The statements by which a module or part imports another one."""
    for module, other in list_imports(graph):
        if f"{module}.".startswith(f"{importer}.") and f"{other}.".startswith(f"{imported}."):
            for detail in graph.get_import_details(importer=module, imported=other):
                yield f"    {module}, line {detail['line_number']}: {detail['line_contents']}"


def check(package: Path, allowed: Mapping[Import, str]) -> Iterator[str]:
    graph = build_graph(package)
    imports = set(list_imports(graph))
    for importer, imported in allowed:
        if (importer, imported) in imports:
            graph.remove_import(importer=importer, imported=imported)
        else:
            yield f"error: {importer} does not import {imported}: remove the exception"
    between_modules = list(find_cycles(graph))
    between_parts = find_cycles(merge_parts(graph, package.name))
    for links in [*between_modules, *(links for links in between_parts if links not in between_modules)]:
        yield f"error: import cycle: {' -> '.join([links[0][0], *(imported for _, imported in links)])}"
        for link in links:
            yield from find_statements(graph, *link)


def main(arguments: list[str]) -> int:
    findings = [finding for name in arguments for finding in check(Path(name), {})]
    findings += [] if arguments else check(Path("perdure"), ALLOWED)
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
