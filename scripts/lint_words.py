"""Finds names in backticks that do not exist, and idioms that STYLE.md's table replaces.

1. Names, in docs and in docstrings and comments of perdure: dotted names and cross-references (``perdure.x.y``,
   :mod:`.x`), files (``calls/journal.py``), members of perdure's classes (``Run.send``), and names in snake or camel
   case, which must occur in the code. A docstring's ``word`` must occur in the code of its file.
2. Idioms, in lines that were changed since the branch left main. Without git, or without main, they are not looked for.

Usage: lint_words.py [ROOT]    (default: this repository)
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SPAN = re.compile(r":(?:mod|func|class|meth|attr|data|exc):`~?([\w.]+)`|``([^`\n]+)``|(?<!`)`([^`\n]+)`(?!`)")
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|sql|md|html|js|css|toml|txt)")
DOTTED = re.compile(r"perdure(?:\.[A-Za-z_]\w*)+")
MEMBER = re.compile(r"([A-Z]\w+)\.([a-z]\w*)(?:\(.*\))?")
NAME = re.compile(r"_?[a-z]\w*_\w+|[A-Z][a-z]+[a-z0-9]*[A-Z]\w*|\w+\(\)")

IDIOMS = re.compile(
    r"\b(?:for ever|anew|all the same|go(?:es)? on|went on|going on|whoever|somebody|nobody|anybody|what there is)\b"
    r"|(?<!here )\bis no (?!longer\b)[a-z]+",
    re.IGNORECASE,
)


OTHER_CODE = {".py", ".sql", ".js", ".html", ".css", ".yml", ".yaml", ".toml", ".json", ".sh", ".ts", ".md"}
KNOWN_WORDS = {*keyword.kwlist, *dir(builtins), "null", "true", "false", "acme", "nightly"}
"""Words of Python and JSON, and of examples."""

PROSE = re.compile(r'^[ \t]*r?"""[\s\S]*?"""|(?:(?<=\s)|^)#[^\n]*', re.MULTILINE)
"""Docstrings and comments of Python code."""
CODE_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)

_FOREIGN = """
EventSource HttpOnly WorkflowTaskScheduled WorkflowExecutionUpdateAdmitted WorkflowNotReady ListSearchAttributes
find_end_index_of_next_wft_seq is_target_worker_deployment_version_changed start_delay auth_headers pg_stat pg_wal
recovery_target_time proxy_pass onmessage gather contextvars generate_content_stream bedrock_guardrail_config
temporal_workflow_task_execution_failed call_NAME retracted_text perdure.already_decided perdure.unknown_interrupt
"""
FOREIGN = set(_FOREIGN.split())
"""Names of Temporal, of SDKs and of databases that no code of ours has, and names that it puts together."""
LEFT_OUT = {"docs/coming-from.md", "docs/decisions/066-the-heart.md"}
"""Pages with the names of other programs, and with files as they were expected before a move."""


class Names:
    """The names of the repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.code = sorted((root / "perdure").rglob("*.py"))
        self.by_module: dict[str, set[str]] = {}
        self.classes: dict[str, list[tuple[set[str], list[str]]]] = {}
        self.definitions: set[str] = set()
        """Names of modules, functions, classes, parameters and fields, keywords, and strings of one word."""
        self.dotted_strings: set[str] = set()
        for path in self.code:
            self._read_module(path)
        others = [
            *(
                path
                for folder in ("tests", "scripts", "benchmarks", "examples", "deploy")
                for path in (root / folder).rglob("*")
            ),
            *(path for suffix in ("sql", "js", "html", "css") for path in (root / "perdure").rglob(f"*.{suffix}")),
        ]
        texts = [path.read_text("utf-8") for path in others if path.suffix in OTHER_CODE and path.is_file()]
        words = (list_words(PROSE.sub("", text)) for text in texts)
        self.words = FOREIGN.union(self.definitions, *self.by_module.values(), *words)

    def _read_module(self, path: Path) -> None:
        text = path.read_text("utf-8")
        parts = path.relative_to(self.root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.by_module[module] = list_words(PROSE.sub("", text))
        self.definitions.update(parts)
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.ClassDef(name, bases):
                    names = list_words(PROSE.sub("", "\n".join(lines[node.lineno - 1 : node.end_lineno])))
                    base_names = [re.sub(r"\[.*", "", ast.unparse(base)).rpartition(".")[2] for base in bases]
                    self.classes.setdefault(name, []).append((names, base_names))
                    self.definitions.add(name)
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.Name(name, ast.Store()) | ast.arg(name):
                    self.definitions.add(name)
                case ast.keyword(str(name)):
                    self.definitions.add(name)
                case ast.Constant(str(value)) if len(value) < 100:
                    self.dotted_strings.update(DOTTED.findall(value))
                    self.definitions.update(list_words(value) if value.count(" ") < 3 else ())

    def has_dotted(self, name: str) -> bool:
        """Whether ``name`` is a module, a name in one, or a text of the code, as the type of an activity is."""
        module, attribute = name, ""
        while module and module not in self.by_module:
            module, _, attribute = module.rpartition(".")
        return name in self.dotted_strings or (bool(module) and (not attribute or attribute in self.by_module[module]))

    def has_member(self, class_name: str, member: str) -> bool:
        """Whether the class, or a base, has ``member``. True for a class, or with a base, that is not perdure's."""
        return class_name not in self.classes or any(
            member in names or any(base != class_name and self.has_member(base, member) for base in bases)
            for names, bases in self.classes[class_name]
        )

    def has(self, name: str) -> bool:
        return name.rstrip("()").rpartition(".")[2] in self.words


def list_words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def list_prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page, or of a module's docstrings and comments, with their numbers."""
    if path.suffix == ".md":
        yield from enumerate(CODE_BLOCK.sub(blank, text).splitlines(), 1)
    else:
        for match in PROSE.finditer(text):
            yield from enumerate(match[0].splitlines(), text.count("\n", 0, match.start()) + 1)


def find_unknown_names(path: Path, names: Names) -> Iterator[tuple[int, str]]:
    text = path.read_text("utf-8")
    own_words = list_words(
        "".join(re.findall(r"```[\s\S]*?```", text)) if path.suffix == ".md" else PROSE.sub("", text)
    )
    package = ".".join(path.relative_to(names.root).parent.parts)
    folders = (*(names.root / folder for folder in ("", "perdure", "perdure/console", "tests")), path.parent)
    for line, prose in list_prose(path, text):
        for role, double, single in SPAN.findall(prose):
            name = role or double or single
            if FILE.fullmatch(name):
                known = "NNN" in name or any((folder / name).exists() for folder in folders)
            elif role.startswith(".") or DOTTED.fullmatch(name):
                known = name in FOREIGN or names.has_dotted(package + name if name.startswith(".") else name)
            elif member := MEMBER.fullmatch(name):
                known = names.has_member(*member.groups())
            elif role or NAME.fullmatch(name):
                known = names.has(name) or name in own_words
            else:
                known = (
                    not (double and re.fullmatch(r"[a-z]+", name))
                    or name in own_words | names.definitions | KNOWN_WORDS | FOREIGN
                )
            if not known:
                yield line, name


def list_changed_lines(root: Path) -> Iterator[tuple[str, int, str]]:
    """The lines of prose and code that were added since the merge base with main, with path and number."""
    git = ["git", "-C", str(root)]
    base = subprocess.run(
        [*git, "merge-base", "HEAD", "main"], capture_output=True, text=True, check=False
    )  # fixed arguments
    if base.returncode != 0:
        return
    command = [*git, "diff", "-U0", base.stdout.strip(), "--", "*.md", "perdure/*.py", "scripts/*.py"]
    diff = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # fixed arguments
    path, number = "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(hunk[1])
        elif line.startswith("+"):
            yield path, number, line[1:]
            number += 1


def main(arguments: list[str]) -> int:
    root = (Path(arguments[0]) if arguments else Path(__file__).parents[1]).resolve()
    names, faults = Names(root), list[str]()
    for path in [*sorted((root / "docs").rglob("*.md")), *sorted(root.glob("*.md")), *names.code]:
        file = path.relative_to(root).as_posix()
        for line, name in () if file in LEFT_OUT else find_unknown_names(path, names):
            faults.append(f"{file}:{line}: error: there is no `{name}`: correct the name")
    for file, number, text in list_changed_lines(root):
        if file != "scripts/lint_words.py" and (idiom := IDIOMS.search(re.sub(r"`[^`]*`", "", text))):
            faults.append(f'{file}:{number}: error: "{idiom[0]}": say it in plain words (STYLE.md, section 8)')
    print("\n".join(faults) or "names and words: no findings")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
