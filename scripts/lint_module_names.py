"""Refuses names of modules that mislead, by the list of files alone.

1. No child of a package, module or subpackage, has a name that the package offers and loads when it is first used
   (``NameLoader``): an import of that child would put the module in the name's place.
2. A module of the root is public, and a page under docs imports from it, or its name begins with ``_``.

Usage: lint_module_names.py [PACKAGE DIRECTORY]    (default: perdure; documentation is looked for in docs beside it)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def list_children(package: Path) -> dict[str, Path]:
    """The modules and subpackages of a package by name, without `__init__.py` and `__main__.py`."""
    modules = {path.stem: path for path in package.glob("*.py") if not path.stem.startswith("__")}
    return modules | {path.parent.name: path.parent for path in package.glob("*/__init__.py")}


def find_lazy_names(source: str) -> set[str]:
    """The names in the mapping that a package's source gives to ``NameLoader``, itself or by its name."""
    tree = ast.parse(source)
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("NameLoader"), args=[_, mapping]):
                given = values.get(mapping.id) if isinstance(mapping, ast.Name) else mapping
                names.update(*(text.split() for text in ast.literal_eval(given or mapping).values()))
    return names


def check_lazy_names(root: Path) -> Iterator[str]:
    for init in sorted(root.rglob("__init__.py")):
        children = list_children(init.parent)
        for name in sorted(find_lazy_names(init.read_text(encoding="utf-8")) & children.keys()):
            package = ".".join(init.parent.relative_to(root.parent).parts)
            yield (
                f"{children[name]}: error: {package}.{name} is a name that the package offers, which an import of this "
                "module would replace: give the module another name"
            )


def check_root_modules(root: Path) -> Iterator[str]:
    pages = [path.read_text(encoding="utf-8") for path in sorted((root.parent / "docs").rglob("*.md"))]
    documented = set(re.findall(rf"\bfrom {root.name}\.(\w+)[\w.]* import\b", "\n".join(pages)))
    for name, path in sorted(list_children(root).items()):
        if path.is_file() and not name.startswith("_") and name not in documented:
            yield (
                f"{path}: error: no page under docs imports from {root.name}.{name}: call it _{name}.py, move it into "
                "a package, or document it"
            )


def main(arguments: list[str]) -> int:
    roots = [Path(name) for name in arguments or ["perdure"]]
    findings = [finding for root in roots for finding in (*check_lazy_names(root), *check_root_modules(root))]
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
