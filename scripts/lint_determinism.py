"""Refuses what would make a replay differ: clocks, randomness, the environment, I/O, unordered iteration.

The workflow runs outside Temporal's sandbox (it holds engine code only), so this lint and the replay tests
are what keeps it deterministic. Inside a workflow the replacements are `workflow.now()`, `workflow.random()`,
`workflow.uuid4()` and an activity for everything else. Imports for type checking only are allowed.

Usage: lint_determinism.py [FILE|DIRECTORY ...]    (default: perdure/workflows perdure/loop)
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOTS = ["perdure/workflows", "perdure/loop"]

MODULES = {
    "time": "a clock",
    "random": "randomness",
    "secrets": "randomness",
    "os": "the environment",
    "pathlib": "files",
    "shutil": "files",
    "tempfile": "files",
    "glob": "files",
    "io": "files",
    "sqlite3": "I/O",
    "socket": "I/O",
    "ssl": "I/O",
    "select": "I/O",
    "subprocess": "processes",
    "multiprocessing": "processes",
    "threading": "threads",
    "concurrent": "threads",
    "http.client": "I/O",
    "urllib.request": "I/O",
    "httpx": "I/O",
    "requests": "I/O",
    "importlib": "imports that this lint cannot see",
}
NAMES = {
    "datetime.datetime.now": "a clock",
    "datetime.datetime.utcnow": "a clock",
    "datetime.datetime.today": "a clock",
    "datetime.date.today": "a clock",
    "uuid.uuid1": "randomness",
    "uuid.uuid4": "randomness",
    "asyncio.to_thread": "threads",
    "asyncio.open_connection": "I/O",
    "asyncio.create_subprocess_exec": "processes",
    "asyncio.create_subprocess_shell": "processes",
    "asyncio.wait": "an order that differs (use workflow.wait)",
    "asyncio.as_completed": "an order that differs (use workflow.as_completed)",
    "sys.argv": "the environment",
    "sys.stdin": "I/O",
    "sys.stdout": "I/O",
    "sys.stderr": "I/O",
}
# Temporal turns these into durable timers inside a workflow; the pure loop has no business waiting at all.
LOOP_NAMES = {"asyncio.sleep": "waiting", "asyncio.wait_for": "waiting"}
BUILTINS = {
    "open": "I/O",
    "print": "I/O",
    "input": "I/O",
    "__import__": "imports that this lint cannot see",
    "hash": "a value that differs between processes",
    "id": "a value that differs between processes",
}
METHODS = {"run_in_executor": "threads"}


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: error: {self.name}: {self.reason} does not belong in replayed code"


def _prefix(name: str, table: dict[str, str]) -> str | None:
    """The reason why `name`, or a package that it lies in, is in the table."""
    parts = name.split(".")
    reasons = (table.get(".".join(parts[: n + 1])) for n in range(len(parts)))
    return next((reason for reason in reasons if reason), None)


def _for_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


class _Checker(ast.NodeVisitor):
    def __init__(self, path: Path, *, loop: bool) -> None:
        self.path = path
        self.names = NAMES | LOOP_NAMES if loop else NAMES
        self.imported: dict[str, str] = {}
        """Local name to the dotted name that it stands for."""
        self.findings: list[Finding] = []

    def report(self, node: ast.expr | ast.stmt, name: str, reason: str | None) -> None:
        if reason:
            self.findings.append(Finding(self.path, node.lineno, name, reason))

    def visit_If(self, node: ast.If) -> None:
        for child in node.orelse if _for_type_checking(node) else [node.test, *node.body, *node.orelse]:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            self.imported[local] = alias.name if alias.asname else local
            self.report(node, alias.name, _prefix(alias.name, MODULES))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or not node.module:
            return
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            self.imported[alias.asname or alias.name] = name
            self.report(node, name, _prefix(name, MODULES) or self.names.get(name))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self.resolve(node)
        if name:
            self.report(node, name, self.names.get(name))
        self.report(node, node.attr, METHODS.get(node.attr))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id not in self.imported:
            self.report(node, node.func.id, BUILTINS.get(node.func.id))
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.iterated(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.iterated(node.iter)
        self.generic_visit(node)

    def iterated(self, node: ast.expr) -> None:
        made = isinstance(node, ast.Call) and ast.unparse(node.func) in {"set", "frozenset"}
        if made or isinstance(node, ast.Set | ast.SetComp):
            self.report(node, "iterating a set", "an order that differs between processes (use sorted)")

    def resolve(self, node: ast.expr) -> str | None:
        """`datetime.now` as `datetime.datetime.now`, when that is what the file imported it as."""
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return base and f"{base}.{node.attr}"
        return self.imported.get(node.id) if isinstance(node, ast.Name) else None


def check(path: Path, *, loop: bool | None = None) -> list[Finding]:
    """The findings of one file; `loop` adds the rules of the pure loop (default: by the path)."""
    checker = _Checker(path, loop="loop" in path.parts if loop is None else loop)
    checker.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return checker.findings


def main(arguments: list[str]) -> int:
    roots = [Path(root) for root in arguments or DEFAULT_ROOTS]
    files = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*.py")))]
    findings = [finding for path in files for finding in check(path)]
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
