"""Loads the SQL of the store: those of a module are in the ``.sql`` of its name beside it, under names.

A file is read and checked once, when its module is imported. It looks like this::

    -- name: list_turns
    -- The newest turns first.
    SELECT task_id, status FROM turns
    WHERE context_id = :context_id
        AND created_at < :before -- if before
    ORDER BY created_at DESC -- if not by_status
    ORDER BY status, created_at DESC -- if by_status
    LIMIT :limit

Lines that several statements have stand once above them, under ``-- part: filters``; ``-- include: filters`` is where
they belong. A line with ``-- if NAME`` belongs to the statement if the value NAME is given, which means neither None
nor False; ``-- if not NAME`` and ``-- if NAME = word`` are the other two forms. ``IN (:names)`` takes a list of texts.
Where the databases differ, a statement stands twice: ``-- name: take_outbox (sqlite)`` and ``-- name: take_outbox
(postgresql)``. Files whose name begins with ``postgres`` or ``sqlite`` are of that database alone.

No value ever becomes part of a statement's text. Why not a library: decision 067.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

SqlDialect = Literal["sqlite", "postgresql"]
DIALECTS: tuple[SqlDialect, ...] = get_args(SqlDialect)

FOLDER = Path(__file__).parent
_DIALECT_BY_PREFIX: dict[str, SqlDialect] = {"sqlite": "sqlite", "postgres": "postgresql"}
_HEADER = re.compile(r"-- name:(.*)")
_PART = re.compile(r"-- part: ([a-z][a-z0-9_]*)")
_INCLUDE = re.compile(r"-- include: ([a-z][a-z0-9_]*)")
_NAME = re.compile(r"([a-z][a-z0-9_]*)(?: \((sqlite|postgresql)\))?")
_CONDITION = re.compile(r"-- if (not )?([a-z_]+)(?: = (\w+))?")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_LIST = re.compile(r"IN \(:([a-z_][a-z0-9_]*)\)")


class StatementError(Exception):
    """A statement of the store, or a call of one, is wrong: a mistake in perdure."""


class Condition(NamedTuple):
    """When a line belongs to its statement."""

    name: str
    word: str | None
    """The value that is asked for; None for any."""
    is_negated: bool

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether the line belongs to a statement with ``values``."""
        value = values.get(self.name)
        is_given = value is not None and value is not False
        return (is_given if self.word is None else value == self.word) is not self.is_negated


class _Line(NamedTuple):
    text: str
    condition: Condition | None


class Statement:
    """A statement with named parameters, in the SQL of each database."""

    def __init__(self, place: str, lines: Mapping[SqlDialect, Sequence[_Line]]) -> None:
        self.place = place
        """``waits.sql: list_waits``"""
        self._lines = lines
        every_line = [line for dialect in lines.values() for line in dialect]
        conditions = (line.condition for line in every_line)
        self.conditions = tuple(dict.fromkeys(condition for condition in conditions if condition is not None))
        text = "\n".join(line.text for line in every_line)
        self.parameters = frozenset(PARAMETER.findall(text))
        self.lists = frozenset(_LIST.findall(text))
        self.names = self.parameters | {condition.name for condition in self.conditions}
        """What a call may give values for."""
        self._texts: dict[tuple[SqlDialect, Sequence[bool]], str] = {}

    def __repr__(self) -> str:
        return f"<Statement {self.place}>"

    @property
    def dialects(self) -> tuple[SqlDialect, ...]:
        """The databases that have it."""
        return tuple(self._lines)

    def render(self, dialect: SqlDialect, values: Mapping[str, Any]) -> str:
        """Return the SQL for ``values``, on one line. Raises ``StatementError`` for a value that it does not know."""
        if not values.keys() <= self.names:
            unknown = ", ".join(sorted(values.keys() - self.names))
            raise StatementError(f"{self.place} has no parameter {unknown}: it has {', '.join(sorted(self.names))}")
        met = tuple([condition.is_met(values) for condition in self.conditions]) if self.conditions else ()
        text = self._texts.get((dialect, met))
        return self._render(dialect, met) if text is None else text

    def _render(self, dialect: SqlDialect, met: Sequence[bool]) -> str:
        if dialect not in self._lines:
            raise StatementError(f"{self.place} is not a statement for {dialect}")
        is_met = dict(zip(self.conditions, met, strict=True))
        lines = [text for text, condition in self._lines[dialect] if condition is None or is_met[condition]]
        text = self._texts[dialect, met] = " ".join(lines)
        return text

    def get_values(self, names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
        """Return the values of ``names``, in that order. Raises ``StatementError`` for one that is not given."""
        try:
            return [values[name] for name in names]
        except KeyError as error:
            raise StatementError(f"{self.place} needs the parameter {error.args[0]}") from None


class StatementFile(Mapping[str, Statement]):
    """The statements of one file, as attributes: ``SQL.list_waits``. Raises ``StatementError`` for another name."""

    def __init__(self, file: str, statements: Mapping[str, Statement]) -> None:
        self._file = file
        self._statements = statements

    def __getattr__(self, name: str) -> Statement:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Statement:
        statement = self._statements.get(name)
        if statement is None:
            raise StatementError(f"{self._file} has no statement {name}: it has {', '.join(self._statements)}")
        return statement

    def __iter__(self) -> Any:
        return iter(self._statements)

    def __len__(self) -> int:
        return len(self._statements)


@cache
def load_statements(subject: str) -> StatementFile:
    """Load the statements of ``subject``: of ``waits`` those in ``store/waits.sql``. Raises ``StatementError``."""
    file = f"{subject}.sql"
    return parse_statements(file, (FOLDER / file).read_text(encoding="utf-8"))


def parse_statements(file: str, text: str) -> StatementFile:
    """Parse the ``text`` of a file. Raises ``StatementError``, which names the file and the line or the statement."""
    own = next((dialect for prefix, dialect in _DIALECT_BY_PREFIX.items() if file.startswith(prefix)), None)
    found: dict[str, dict[SqlDialect | None, list[_Line]]] = {}
    parts: dict[str, list[_Line]] = {}
    lines: list[_Line] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{file}, line {number}"
        if header := _HEADER.fullmatch(line):
            name = _NAME.fullmatch(header[1].strip())
            if name is None:
                raise StatementError(f"{place}: {line!r} names no statement: write `-- name: list_waits`")
            if hasattr(StatementFile, name[1]):
                raise StatementError(f"{place}: {name[1]} is a method of mappings: choose another name")
            dialect: Any = name[2]
            if dialect in (variants := found.setdefault(name[1], {})):
                raise StatementError(f"{place}: the name {header[1].strip()} is given twice")
            lines = variants[dialect] = []
        elif part := _PART.fullmatch(line):
            if part[1] in parts:
                raise StatementError(f"{place}: the part {part[1]} is given twice")
            lines = parts[part[1]] = []
        elif include := _INCLUDE.fullmatch(line.strip()):
            if lines is None or include[1] not in parts:
                raise StatementError(f"{place}: there is no part {include[1]} above it: write `-- part: {include[1]}`")
            lines += parts[include[1]]
        elif parsed := _parse_line(place, line.strip()):
            if lines is None:
                raise StatementError(f"{place}: a statement without a name: write `-- name: …` above it")
            lines.append(parsed)
    return StatementFile(file, {name: _build(f"{file}: {name}", own, of_name) for name, of_name in found.items()})


def _parse_line(place: str, line: str) -> _Line | None:
    """Parse a line of a statement; None for an empty one or a comment."""
    if line.startswith("--") or not line:
        return None
    text, dashes, comment = line.partition("--")
    condition = _CONDITION.fullmatch(dashes + comment) if dashes else None
    if dashes and condition is None:
        raise StatementError(f"{place}: a comment behind SQL is `-- if NAME`: write others on a line of their own")
    if ";" in text:
        raise StatementError(f"{place}: a statement has no semicolon")
    if condition is None:
        return _Line(text, None)
    return _Line(text.rstrip(), Condition(condition[2], condition[3], bool(condition[1])))


def _build(place: str, own: SqlDialect | None, variants: dict[SqlDialect | None, list[_Line]]) -> Statement:
    if not all(variants.values()):
        raise StatementError(f"{place} has a name and no SQL")
    if own is not None:
        if variants.keys() != {None}:
            raise StatementError(f"{place}: the file is of {own} alone, so its names have no database")
        return Statement(place, {own: variants[None]})
    if variants.keys() == {None}:
        return Statement(place, dict.fromkeys(DIALECTS, variants[None]))
    if variants.keys() != set(DIALECTS):
        raise StatementError(f"{place} is for one database: write it for {' and '.join(DIALECTS)}, or for both at once")
    statement = Statement(place, {dialect: variants[dialect] for dialect in DIALECTS})
    if len(known := {Statement(place, {dialect: variants[dialect]}).names for dialect in DIALECTS}) > 1:
        unknown = ", ".join(sorted(frozenset.union(*known) - frozenset.intersection(*known)))
        raise StatementError(f"{place}: only one of its two databases has the parameter {unknown}")
    return statement
