"""What a docstring says of a tool and of its parameters: Google, NumPy and Sphinx style."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from docstring_parser import Docstring, DocstringStyle, ParseError, parse

from perdure.types.messages import clean

# Not the parser's own guess: its fourth style, epydoc, takes any line that begins with "@" for markup.
_STYLES = (DocstringStyle.GOOGLE, DocstringStyle.NUMPYDOC, DocstringStyle.REST)


@dataclass(frozen=True, slots=True)
class Described:
    """Short and long text of the docstring, and the text of each parameter that has one."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def describe(doc: str, names: Collection[str]) -> Described:
    """Read ``doc`` (already dedented) in the style that describes most of the parameters ``names``."""
    readings = [reading for style in _STYLES if (reading := _read(doc, style)) is not None]
    # The first of equals wins.
    best = max(readings, key=lambda reading: (len(_parameters(reading, names)), len(reading.meta)), default=None)
    if best is None or not best.meta:
        return Described(clean(doc.strip()))
    return Described(clean((best.description or "").strip()), _parameters(best, names))


def _read(doc: str, style: DocstringStyle) -> Docstring | None:
    try:
        return parse(doc, style)
    except ParseError:  # text that only looks like this style
        return None


def _parameters(reading: Docstring, names: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for parameter in reading.params:
        for name in parameter.arg_name.split(","):  # NumPy style: "x, y : float"
            text = (parameter.description or "").strip()
            if text and name.strip() in names:
                found.setdefault(name.strip(), clean(text))
    return found
