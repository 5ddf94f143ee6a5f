"""Notices a change of the loop's rules: compares a digest of perdure/loop with the one that is recorded for its RULES.

What counts is the code, without comments, docstrings and layout. From 0.1.0 on a run that began by earlier rules is
replayed by them, so a change counts RULES up; until then it stays 1, and --write (`make fmt`) records the new digest.

Usage: lint_rules.py [--write]
"""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "scripts" / "loop_rules.txt"


def digest_rules(folder: Path) -> str:
    """A digest of what the modules of ``folder`` do."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = [each for each in node.body if not is_text(each)] or [ast.Pass()]
        digest.update(f"{file.name}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()


def is_text(node: ast.stmt) -> bool:
    """Whether ``node`` is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def read_rules(folder: Path) -> int:
    """RULES of the loop, without importing it."""
    for node in ast.parse((folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RULES":
            return int(ast.literal_eval(node.value))
    raise SystemExit(f"{folder / '__init__.py'} has no RULES")


def main() -> None:
    """See the module."""
    folder = ROOT / "perdure" / "loop"
    found = f"{read_rules(folder)} {digest_rules(folder)}\n"
    if "--write" in sys.argv:
        RECORD.write_text(found)
    elif not RECORD.exists() or RECORD.read_text() != found:
        print("perdure/loop has changed. Before 0.1.0: make fmt records it. After: count RULES up, and keep the")
        print("earlier rules for executions that began by them (CONTRIBUTING.md).")
        sys.exit(1)


if __name__ == "__main__":
    main()
