"""Assembles the tool calls of a streamed reply: one table says what each piece is.

OpenAI sends an index with every piece, id and name with the first, and the arguments as pieces of JSON text. Compatible
servers leave out the index or the ids, give every call the index 0 or the same id, repeat the name or change the id
with every piece, send an empty object before the arguments or an empty piece behind them, and send the whole call once
more at the end. A call that is begun by mistake runs a tool, perhaps one with effects: so what has no name begins no
call that could run, and a call that is sent again without an id of its own is the call that is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from ..errors import ModelSlipError
from ..types.messages import Part, ToolCallPart, clean_text
from .encoding import build_tool_call, clean_json_value, is_object_text, keep_opaque, parse_arguments
from .reply import read_object, read_string

Index = Literal["known", "new"]
"""``known``: a call has the piece's index. A piece without index belongs to the call with its id, else to the last one:
``known``, too."""
Id = Literal["beside", "neither", "none", "same", "new"]
"""The piece's id and the call's: neither has one (absent, null and empty are the same), ``beside`` if both are entries
of one list; only the call has one; they are equal or only the piece has one; they differ."""
Name = Literal["none", "same", "new", "late"]
"""The piece's name beside the call's; ``late`` if the call has none yet."""
SoFar = Literal["nothing", "blank", "partial", "empty", "whole"]
"""The call's arguments so far: there is no call yet; no text; the beginning of an object; an object, ``null`` or ``[]``
without content; an object with content."""
PieceText = Literal["blank", "rest", "start", "object", "equal"]
"""The piece's arguments: no text; what cannot begin an object; the beginning of an object; an object; the arguments of
a complete call of that name to which the id, if there is one, does not give another."""
Act = Literal["begin", "continue", "replace", "announce", "skip"]
"""``begin`` a call; ``continue`` the call; ``replace`` its empty arguments; ``announce`` a call of the same name, which
begins if arguments follow; ``skip`` what is there already."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table: in each column the values that it is for, all if empty."""

    so_far: str
    piece: str
    index: str
    id: str
    name: str
    act: Act
    why: str

    def fits(self, *values: str) -> bool:
        """Whether the row is for these values of the five columns."""
        columns = (self.so_far, self.piece, self.index, self.id, self.name)
        return all(not column or value in column.split() for column, value in zip(columns, values, strict=True))


_CLOSED = "empty whole"
RULES = (
    Rule("nothing", "", "", "", "", "begin", "the reply's first piece"),
    Rule("", "rest", "known", "beside neither none same", "none same late", "continue", "as all servers do"),
    # An index that no call has. Whether it is a call again is seen when all its arguments are there.
    Rule("partial", "rest", "new", "", "none same", "continue", "an index for each piece: a rest begins no call"),
    Rule("", "", "new", "", "same new late", "begin", "the next call"),
    Rule("", "blank start object", "new", "new", "none", "begin", "the next call, whose name follows"),
    Rule("whole", "start object", "new", "", "none", "begin", "the next call, which has no name"),
    # The call has no arguments yet.
    Rule("blank", "", "", "new", "same new late", "begin", "the call before has no arguments"),
    Rule("blank", "object equal", "", "", "new", "begin", "the call before has no arguments"),
    Rule("blank", "", "", "", "", "continue", "its arguments, or more of its name"),
    # Its arguments are not complete: nothing but a whole call with an id and a name of its own follows them.
    Rule("partial", "object equal", "", "new", "new late", "begin", "the call before was broken off"),
    Rule("partial", "", "", "", "", "continue", "its arguments; names and ids may be repeated or change"),
    # They are complete: nothing more belongs to them.
    Rule(_CLOSED, "blank", "", "", "none", "skip", "an empty last piece"),
    Rule(_CLOSED, "blank", "", "beside neither none same", "same", "announce", "an empty last piece, or the next call"),
    Rule(_CLOSED, "blank", "", "beside neither none same", "late", "continue", "its name comes last"),
    Rule(_CLOSED, "blank", "", "", "same new late", "begin", "the next call, whose arguments follow"),
    Rule(_CLOSED, "equal", "", "", "", "skip", "the whole call again"),
    Rule(_CLOSED, "", "", "", "new late", "begin", "the next call"),
    Rule(_CLOSED, "", "", "new", "same", "begin", "the next call of the same tool"),
    Rule("empty", "object", "", "beside", "same", "begin", "whole calls without ids, in one list"),
    Rule("empty", "start object", "", "", "", "replace", "an empty object in front of the arguments"),
    Rule("whole", "start object", "", "", "same", "begin", "the next call, by index and id the same"),
    Rule("whole", "start object", "", "new", "none", "begin", "the next call, which has no name"),
    Rule(_CLOSED, "", "", "", "", "continue", "unreadable, and the model is told so"),
)
"""The first row that fits counts."""


@cache
def find_rule(so_far: SoFar, piece: PieceText, index: Index, id: Id, name: Name) -> Rule:
    """The row for a piece."""
    return next(rule for rule in RULES if rule.fits(so_far, piece, index, id, name))


EMPTY_TEXTS = frozenset(["{}", "null", "[]", '""'])
"""What servers send for no arguments."""
_SHORT = 8
"""Characters of a text that may be one of them, with blanks."""
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)


class StreamedArguments:
    """The arguments of one call under assembly. Scans each character once, however often it is asked."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._last = ""  # its last character that is not blank
        self._scanned = 0  # pieces
        self._depth = 0
        self._in_text = False
        self._escape = ""
        self._state: SoFar | None = "blank"
        self._canonical: str | None = None
        self._shown = ""  # of a text that may still turn out to be empty
        self._held = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @property
    def state(self) -> SoFar:
        """What the text so far is."""
        if self._state is None:
            self._state = self._read_state()
        return self._state

    @property
    def canonical(self) -> str:
        """The arguments as text that is equal for equal ones; "" if they are not complete."""
        if self._canonical is None:
            self._canonical = encode_canonical(self.text) if self.state in ("empty", "whole") else ""
        return self._canonical

    @property
    def may_be_closed(self) -> bool:
        """Whether the text so far has an end that a whole value may have."""
        return self._last in ("}", '"') or self._length <= _SHORT

    def _read_state(self) -> SoFar:
        if not self._last:
            return "blank"
        if self._length <= _SHORT and self.text.strip() in EMPTY_TEXTS:
            return "empty"
        if not self.may_be_closed or not self._is_balanced() or not is_object_text(text := self.text):
            return "partial"
        return "whole" if parse_arguments(text) else "empty"

    def _is_balanced(self) -> bool:
        """Whether all brackets and quotes are closed: only then it may be a whole value."""
        for piece in self._pieces[self._scanned :]:
            piece = self._escape + piece
            self._escape = "\\" if (len(piece) - len(piece.rstrip("\\"))) % 2 else ""
            for match in _STRUCTURE.finditer(piece):
                mark = match[0]
                if mark == '"':
                    self._in_text = not self._in_text
                elif not self._in_text and mark[0] != "\\":
                    self._depth += 1 if mark in "{[" else -1
        self._scanned = len(self._pieces)
        return self._depth == 0 and not self._in_text

    def add(self, piece: str) -> str:
        """Take the next piece; what of the text is to be shown now. An empty object is held back: the arguments may
        follow it."""
        if not piece:
            return ""
        self._pieces.append(piece)
        self._length += len(piece)
        self._last = piece.rstrip()[-1:] or self._last
        self._state = self._canonical = None
        self._held += piece
        if self._length <= _SHORT and self.text.strip() in EMPTY_TEXTS:
            return ""
        shown, self._held = self._held, ""
        self._shown = self._shown + shown if self._length <= _SHORT else ""
        return shown

    def replace(self, piece: str) -> str:
        """Take the first piece of the arguments in the place of an empty object; what is to be shown now."""
        shown = self._shown
        self._reset()
        self.add(piece)
        return piece.removeprefix(shown)

    def extend(self, piece: str) -> str:
        """Take the next piece of a call that the format tells apart from others; what is to be shown now."""
        kind, is_empty = _classify_text(piece), piece.strip() in EMPTY_TEXTS
        if kind == "rest" and not is_empty:
            return self.add(piece)
        if self.state in ("empty", "whole"):
            is_equal = kind == "object" and encode_canonical(piece) == self.canonical
            kind = "blank" if is_empty else "equal" if is_equal else kind
        act = find_rule(self.state, kind, "known", "same", "none").act
        if act == "skip":
            return ""
        return self.replace(piece) if act == "replace" else self.add(piece)


@dataclass(slots=True)
class ToolCallSlot:
    """A call under assembly."""

    index: int
    """Its place in the reply."""
    wire_index: int | None
    chunk: int = 0
    """Number of the chunk that it began with."""
    id: str = ""
    began_whole: bool = False
    """It began with all its arguments."""
    ids_vary: bool = False
    """The server sends another id with each piece: they say nothing."""
    name: str = ""
    arguments: StreamedArguments = field(default_factory=StreamedArguments)
    announced: bool = False
    """A piece without arguments followed it, which may begin another call of the same tool."""
    extra: Any = None
    """What the server keeps with the call, and wants back."""

    @property
    def is_closed(self) -> bool:
        """Its arguments are an object, to which nothing more can belong."""
        return self.arguments.state in ("empty", "whole")

    def compare_id(self, id: str, chunk: int) -> Id:
        """The id of a piece of that chunk and the call's."""
        if not id:
            return "none" if self.id else "beside" if self.chunk == chunk else "neither"
        return "same" if not self.id or self.id == id or self.ids_vary else "new"

    def build_part(self, origin: str, *, cut: bool = False) -> ToolCallPart:
        """The call. ``cut``: the reply ended within its arguments."""
        extra = None if self.extra is None else {"extra_content": clean_json_value(self.extra)}
        text = clean_text(self.arguments.text)
        part = build_tool_call(self.id, self.name, text, keep_opaque(origin, extra))
        return part.model_copy(update={"malformed": text}) if cut and part.malformed is None else part


MOST_CALLS = 2000
"""Limit of calls in one streamed reply: each piece is compared with the calls before it."""


class ToolCallSlots:
    """The calls of one reply."""

    def __init__(self) -> None:
        self._slots: list[ToolCallSlot] = []
        self._chunk = 0

    def __len__(self) -> int:
        return len(self._slots)

    def begin_chunk(self) -> None:
        """The next pieces come together: equal calls among them are different calls."""
        self._chunk += 1

    def __iter__(self) -> Iterator[ToolCallSlot]:
        return iter(self._slots)

    def add(self, entry: Mapping[str, Any], *, is_whole: bool = False) -> tuple[ToolCallSlot, str] | None:
        """Take one piece; the call that it belongs to, and what it adds to the arguments; None if it adds nothing.
        ``is_whole``: its arguments are those of the call, and not what follows the others. Raises ``ModelSlipError``
        for more than ``MOST_CALLS`` calls."""
        function = read_object(entry.get("function")) or entry
        call_id, name = clean_text(read_string(entry.get("id"))), clean_text(read_string(function.get("name"))).strip()
        text = read_argument_text(function.get("arguments"))
        index = entry.get("index")
        wire_index = index if isinstance(index, int) else None
        present, act = self._choose(wire_index, call_id, name, text)
        if act == "begin" or present is None:
            if len(self._slots) >= MOST_CALLS:
                raise ModelSlipError(f"the reply has more than {MOST_CALLS:,} tool calls")
            slot = ToolCallSlot(len(self._slots), wire_index, self._chunk, id=call_id, name=name)
            if present is not None:
                slot.name = name or (present.name if present.announced else "")
                present.announced = False
            shown = slot.arguments.add(text)
            slot.extra, slot.began_whole = entry.get("extra_content"), slot.is_closed
            self._slots.append(slot)
            # A call that may be an earlier one again is not shown until more of it comes.
            return None if any(_is_repetition(slot, earlier) for earlier in self._slots[:-1]) else (slot, shown)
        slot = present
        slot.announced = act == "announce"
        slot.ids_vary = slot.ids_vary or bool(act == "continue" and call_id and slot.id and call_id != slot.id)
        slot.id = slot.id or call_id
        slot.extra = slot.extra if entry.get("extra_content") is None else entry["extra_content"]
        if act in ("skip", "announce"):
            return None
        if name != slot.name and (not slot.name or slot.arguments.state == "blank"):
            slot.name += name  # it was late, or comes in pieces itself
        if act == "replace" or (is_whole and text and slot.arguments.state == "partial"):
            return slot, slot.arguments.replace(text)
        return slot, slot.arguments.add(text)

    def _choose(self, wire_index: int | None, id: str, name: str, text: str) -> tuple[ToolCallSlot | None, Act]:
        """The call that the piece is compared with, and what is done with the piece."""
        if not self._slots:
            return None, "begin"
        same_index = [slot for slot in self._slots if wire_index is None or slot.wire_index == wire_index]
        candidates = same_index or self._slots
        slot = next((slot for slot in reversed(candidates) if id and slot.id == id), candidates[-1])
        index: Index = "known" if same_index else "new"
        if name and not text.strip() and slot.compare_id(id, self._chunk) != "new" and slot.arguments.state == "blank":
            # A call without arguments once more: the name of one that is there is not the rest of another name.
            slot = next((each for each in same_index if each.name == name), slot)
        id_relation = slot.compare_id(id, self._chunk)
        name_relation: Name = "same" if slot.announced else "none"
        if name:
            name_relation = "same" if name == slot.name else "new" if slot.name else "late"
        kind = _classify_text(text)
        if kind == "rest" and text.lstrip()[0] == '"' and slot.arguments.may_be_closed and slot.is_closed:
            kind = "start"  # of a text that holds an object
        is_empty = len(text) <= _SHORT and text.strip() in EMPTY_TEXTS
        if kind == "rest" and not is_empty and index == "known" and id_relation != "new" and name_relation != "new":
            return slot, "continue"  # most pieces: their call's arguments need not be read
        so_far = slot.arguments.state
        if is_empty and slot.is_closed:
            kind = "object" if name else "blank"
        if kind == "object" and slot.is_closed:
            # Arguments equal to those of a call with another index follow the empty object.
            is_first = name_relation == "same" and so_far == "empty" and id in ("", slot.id) and wire_index is not None
            equal = self._find_equal(slot, same_index if is_first else self._slots, id, name, text)
            if equal is not None:
                slot, kind, id_relation = equal, "equal", equal.compare_id(id, self._chunk)
        return slot, find_rule(so_far, kind, index, id_relation, name_relation).act

    def _find_equal(
        self, present: ToolCallSlot, among: Sequence[ToolCallSlot], id: str, name: str, text: str
    ) -> ToolCallSlot | None:
        """The call ``among`` those that a whole piece repeats: without a name it can only be ``present``."""
        slots = [slot for slot in among if slot.name == name] if name else [present]
        canonical = encode_canonical(text)
        for slot in reversed(slots):
            if slot.arguments.canonical != canonical:
                continue
            if slot.compare_id(id, self._chunk) not in ("beside", "new"):
                return slot
        return None

    def build_parts(self, origin: str = "", *, cut: bool = False) -> list[ToolCallPart]:
        """The calls, in order. ``cut``: the reply ended early: calls that are not complete are malformed."""
        kept: list[ToolCallSlot] = []
        for slot in self._slots:
            is_cut = cut and slot is self._slots[-1]
            earlier = next((each for each in kept if not is_cut and _is_repetition(slot, each)), None)
            if earlier is not None:
                earlier.extra = earlier.extra if slot.extra is None else slot.extra
            elif not _is_nothing(slot):
                kept.append(slot)
        last = kept[-1] if kept else None
        return [slot.build_part(origin, cut=cut and slot is last and slot.arguments.state == "blank") for slot in kept]


def _is_nothing(slot: ToolCallSlot) -> bool:
    return not slot.name and slot.arguments.state == "blank"


def _is_repetition(slot: ToolCallSlot, earlier: ToolCallSlot) -> bool:
    """Whether ``slot`` is ``earlier`` once more: it began under an index of its own, but has no id of its own."""
    relation = earlier.compare_id(slot.id, slot.chunk)
    if slot.name != earlier.name or relation in ("beside", "new"):
        return False
    if slot.arguments.state == "blank":
        return True
    is_whole = slot.is_closed and (relation != "neither" or slot.began_whole)
    return is_whole and slot.arguments.canonical == earlier.arguments.canonical


def _classify_text(text: str) -> PieceText:
    stripped = text.strip()
    if not stripped:
        return "blank"
    if stripped[0] not in '{"':
        return "rest"
    if is_object_text(text):
        return "object"
    return "start" if stripped[0] == "{" else "rest"


def read_argument_text(arguments: object) -> str:
    """Arguments as text: some servers send them as an object, or null or an empty list for none."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None or arguments == [] else json.dumps(arguments, ensure_ascii=False)


def encode_canonical(text: str) -> str:
    """The arguments in ``text`` as text that is equal for equal ones. Python's ``==`` takes ``true`` for 1."""
    return json.dumps(parse_arguments(text), sort_keys=True)


def is_same_json(one: object, other: object) -> bool:
    """Whether two JSON values are equal. Python's ``==`` takes ``true`` for 1."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def drop_repeated_calls(parts: Iterable[Part]) -> list[Part]:
    """``parts`` without calls that repeat an earlier one with its id, and without those that only began one, without
    arguments: no format gives two calls the same id."""
    kept: list[Part | None] = []
    complete: set[tuple[str, str, str]] = set()
    empty: dict[tuple[str, str], int] = {}
    """Places in ``kept`` of calls without arguments."""
    filled: set[tuple[str, str]] = set()
    for part in parts:
        if isinstance(part, ToolCallPart) and part.id:
            call = part.id, part.name
            whole = None if part.malformed is not None else (*call, json.dumps(part.arguments, sort_keys=True))
            is_empty = whole is not None and not part.arguments
            if whole in complete or (is_empty and call in filled):
                continue
            if whole is not None:
                complete.add(whole)
            if is_empty:
                empty[call] = len(kept)
            else:
                filled.add(call)
                if (place := empty.pop(call, None)) is not None:
                    kept[place] = None
        kept.append(part)
    return [part for part in kept if part is not None]
