"""Every regular expression of the package, and texts on which one would take long: for tests of what they cost.

A pattern is found where it is written (each call of a function of ``re``) and where it is kept (modules, classes and
containers of both). The texts are derived from the pattern's parse tree: runs of what it repeats, alone, after its
beginning, and before what it cannot match.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import re._constants as op  # type: ignore[import-untyped]  # the parser's own: there is no public one
import re._parser as parser  # type: ignore[import-untyped]
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from types import ModuleType
from typing import Any

import perdure

FUNCTIONS = frozenset(("compile", "match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"))
SCANS = {"findall": "finditer", "sub": "finditer", "subn": "finditer", "split": "finditer"}
"""Methods that scan a text in the way of another."""
NOT_IMPORTABLE = ("perdure.store.migrations.env",)
"""Modules that only Alembic runs."""


@dataclass
class FoundPattern:
    """A pattern, the names of the places that have it, and the methods by which the package uses it."""

    pattern: str | bytes
    flags: int
    places: list[str] = field(default_factory=list)
    methods: set[str] = field(default_factory=set)

    def compile(self) -> re.Pattern[Any]:
        """Compile it."""
        return re.compile(self.pattern, self.flags & ~(0 if isinstance(self.pattern, bytes) else re.UNICODE))


def load_modules() -> Iterator[ModuleType]:
    """Import every module of the package."""
    for found in pkgutil.walk_packages(perdure.__path__, "perdure."):
        if found.name not in NOT_IMPORTABLE and not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def find_patterns(
    build_dynamic: Mapping[str, Callable[[], Iterable[re.Pattern[Any]]]],
) -> tuple[list[FoundPattern], list[str]]:
    """Return the patterns, and the places of those that are computed and not in ``build_dynamic`` (``MODULE.FUNCTION``:
    a function that builds examples)."""
    patterns: dict[tuple[str | bytes, int], FoundPattern] = {}

    def add(compiled: re.Pattern[Any], place: str, methods: Iterable[str]) -> None:
        found = patterns.setdefault((compiled.pattern, compiled.flags), FoundPattern(compiled.pattern, compiled.flags))
        found.places.append(place)
        found.methods.update(SCANS.get(method, method) for method in methods)

    unknown: list[str] = []
    modules = list(load_modules())
    trees = {module: ast.parse(Path(str(module.__file__)).read_text()) for module in modules if module.__file__}
    uses = _find_uses(trees.values())
    for module, tree in trees.items():
        for owner, call, target in _find_calls(tree):
            place = f"{module.__name__}.{target or owner}"
            compiled = _evaluate(call, vars(module))
            method = call.func.attr  # type: ignore[attr-defined]  # _find_calls yields calls of attributes
            methods = uses.get(target, {"search", "fullmatch"}) if method == "compile" else {method}
            if compiled is not None:
                add(compiled, place, methods)
            elif place in build_dynamic:
                for example in build_dynamic[place]():
                    add(example, place, methods)
            else:
                unknown.append(f"{place}, line {call.lineno}")
        for name, compiled in _find_objects(vars(module).items(), set()):
            add(compiled, f"{module.__name__}.{name}", uses.get(name, {"search", "fullmatch"}))
    return list(patterns.values()), unknown


def _find_calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield each call of ``re``: the function around it, the call, and the name that it is assigned to."""

    def walk(node: ast.AST, owner: str, target: str) -> Iterator[tuple[str, ast.Call, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            owner, target = node.name, ""
        if isinstance(node, ast.Assign | ast.AnnAssign):
            first = node.targets[0] if isinstance(node, ast.Assign) else node.target
            target = first.id if isinstance(first, ast.Name) and not owner else ""
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in FUNCTIONS
        ):
            yield owner, node, target
        for child in ast.iter_child_nodes(node):
            yield from walk(child, owner, target)

    yield from walk(tree, "", "")


def _find_uses(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """Return by which methods each name is used; one that is passed on may be used by any."""
    uses: dict[str, set[str]] = {}
    for tree in trees:
        called: set[int] = set()
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute)):
                continue
            name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            called.add(id(node.value))
            if node.attr in FUNCTIONS:
                uses.setdefault(name, set()).add(node.attr)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in called:
                uses.setdefault(node.id, set()).update(("search", "fullmatch"))
    return uses


def _evaluate(call: ast.Call, names: Mapping[str, Any]) -> re.Pattern[Any] | None:
    flags = [word.value for word in call.keywords if word.arg == "flags"]
    position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)  # type: ignore[attr-defined]
    flags += call.args[position : position + 1]
    try:
        pattern, *values = (
            eval(compile(ast.Expression(node), "<pattern>", "eval"), dict(names))  # noqa: S307  # the package's own
            for node in (call.args[0], *flags)
        )
        return pattern if isinstance(pattern, re.Pattern) else re.compile(pattern, *values)
    except (NameError, AttributeError, TypeError):
        return None


def _find_objects(items: Iterable[tuple[Any, Any]], seen: set[int]) -> Iterator[tuple[str, re.Pattern[Any]]]:
    for name, value in items:
        if isinstance(value, re.Pattern):
            yield str(name), value
        elif id(value) in seen:
            continue
        elif isinstance(value, Mapping):
            seen.add(id(value))
            yield from _find_objects([(name, part) for pair in list(value.items()) for part in pair], seen)
        elif isinstance(value, list | tuple | set | frozenset):
            seen.add(id(value))
            yield from _find_objects([(name, part) for part in value], seen)
        elif isinstance(value, type) and value.__module__.startswith("perdure"):
            seen.add(id(value))
            yield from _find_objects(list(vars(value).items()), seen)


# ---
# Texts.


ALPHABET = "aZz09_-./:+%&=?#@<>\"'\\()[]{}|,; \t\n\r\x00\x1bé…€\ud800😀"
FIXED = (
    *(
        "a",
        "0",
        " ",
        "\n",
        "\r\n",
        "\t",
        "\\",
        '"',
        "'",
        "<",
        "<a ",
        '<a b="',
        "</a>",
        "[",
        "{",
        "[]",
        "{}",
        "(",
        "://",
    ),
    *("a://", "a://@", "a://?", "a@", "=", "a=", "&key=", "Bearer ", "sk-", "sk-a", "AIza", "-", ".", "a.", "a-", "_"),
    *("%", "%25", "&#", "&#x", "\\u", "\\u0000", "…", "...", "\x00", "é", "😀", "| a ", "aA", "0.", "0s", "finish>"),
)
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)


def build_texts(pattern: FoundPattern, size: int, most: int = 250) -> Iterator[tuple[str, str]]:
    """Yield texts of about ``size`` characters on which a pattern may take long, each with one of twice the size."""
    tree = parser.parse(
        pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern,
        pattern.flags & ~(re.UNICODE | re.LOCALE),
    )
    both = zip(_generate_texts(list(tree), size), _generate_texts(list(tree), 2 * size), strict=True)
    yield from dict.fromkeys(islice(both, most))


def _generate_texts(tree: list[Any], size: int) -> Iterator[str]:
    bodies: list[str] = []
    for before, repeated in _find_repeats(tree, ""):
        for body in islice(dict.fromkeys(_sample(repeated)), 6):
            if not body:
                continue
            bodies.append(body)
            run = body * (size // len(body))
            yield run
            for rest in ("\x00", "\n", "!", "a"):
                yield before + run + rest
            yield _fill(before + body, size)
            yield _fill(before + body * 3 + "\x00", size)
        if before:
            yield _fill(before, size)
    for example in islice(dict.fromkeys(_sample(tree)), 6):
        for cut in sorted({len(example), len(example) - 1, *range(1, min(len(example), 12))}):
            if example[:cut]:
                yield _fill(example[:cut], size)
    for text in FIXED:
        yield _fill(text, size)
    for first, second in islice(product(list(dict.fromkeys(bodies))[:8], repeat=2), 64):
        if first != second:
            yield _fill(first, size // 2) + _fill(second, size // 2)
            yield _fill(first + second, size)


def _fill(text: str, size: int) -> str:
    return text * max(size // len(text), 1)


def _find_repeats(tree: list[Any], before: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield what is repeated without a small bound, each with a text that leads to it."""
    for code, value in tree:
        if code in _REPEATS:
            if value[1] > 8:
                yield before, list(value[2])
            yield from _find_repeats(list(value[2]), before)
        elif code is op.SUBPATTERN:
            yield from _find_repeats(list(value[3]), before)
        elif code is op.ATOMIC_GROUP:
            yield from _find_repeats(list(value), before)
        elif code is op.BRANCH:
            for alternative in value[1]:
                yield from _find_repeats(list(alternative), before)
        elif code in (op.ASSERT, op.ASSERT_NOT):
            yield from _find_repeats(list(value[1]), before)
        before += next(_sample([(code, value)]), "")


def _sample(tree: list[Any]) -> Iterator[str]:
    """Yield texts that match, the first the shortest; a handful for each choice."""
    parts = [list(islice(_sample_item(code, value), 6)) or [""] for code, value in tree]
    yield "".join(part[0] for part in parts)
    for index, part in enumerate(parts):
        for choice in part[1:]:
            yield "".join(choice if at == index else other[0] for at, other in enumerate(parts))


def _sample_item(code: Any, value: Any) -> Iterator[str]:
    if code is op.LITERAL:
        yield chr(value)
    elif code in (op.NOT_LITERAL, op.ANY, op.IN):
        yield from (char for char in ALPHABET if _matches(code, value, char))
        if code is op.IN:
            yield from (chr(item[1] if item[0] is op.LITERAL else item[1][0]) for item in value if item[0] in _CHARS)
    elif code in _REPEATS:
        for text in _sample(list(value[2])):
            yield text * max(value[0], 1)
    elif code is op.SUBPATTERN:
        yield from _sample(list(value[3]))
    elif code is op.ATOMIC_GROUP:
        yield from _sample(list(value))
    elif code is op.BRANCH:
        for alternative in value[1]:
            yield from islice(_sample(list(alternative)), 2)
    elif code is op.ASSERT and value[0] < 0:  # what a lookbehind wants stands before
        yield from _sample(list(value[1]))


_CHARS = (op.LITERAL, op.RANGE)
_CATEGORIES = {
    op.CATEGORY_DIGIT: str.isdigit,
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
}
_NEGATED = {op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT, op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
            op.CATEGORY_NOT_WORD: op.CATEGORY_WORD}  # fmt: skip


def _matches(code: Any, value: Any, char: str) -> bool:
    if code is op.ANY:
        return char != "\n"
    if code is op.NOT_LITERAL:
        return ord(char) != value
    is_negated = value[0][0] is op.NEGATE
    return any(_is_of(item, char) for item in value if item[0] is not op.NEGATE) is not is_negated


def _is_of(item: tuple[Any, Any], char: str) -> bool:
    kind, value = item
    if kind is op.LITERAL:
        return ord(char) == value
    if kind is op.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if value in _NEGATED:
        return not _CATEGORIES[_NEGATED[value]](char)
    return bool(_CATEGORIES[value](char))
