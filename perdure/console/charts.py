"""Plots as SVG: the sizes of bars, which templates print as attributes.

A plot is stretched to the width of the page, so it has bars alone; what is to be read stands beside it as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

HEIGHT = 100.0
SLOT = 10.0
"""Width of a bar with the gap behind it; the page stretches both."""
_GAP = 2.0
_LEAST = 1.0
"""Least height of a bar, so that little is more than nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar, from the top down."""

    tone: str
    """Class of its colour."""
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a plot over time."""

    x: float
    title: str
    """What a pointer that rests on it is told."""
    href: str
    """What is behind it; "" for nothing."""
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot over time."""

    name: str
    top: str
    """What its upper edge stands for."""
    bars: Sequence[Bar]
    legend: Sequence[tuple[str, str]] = ()
    """Colours and what they stand for, where there are several."""
    note: str = ""

    @property
    def width(self) -> float:
        """Width of the plot."""
        return SLOT * max(len(self.bars), 1)


@dataclass(frozen=True, slots=True)
class Column:
    """What a plot has of one day: the values of its parts, None where they are unknown."""

    title: str
    href: str
    values: Sequence[float | None]


def round_up(value: float) -> float:
    """Return the next of 1, 2, 2.5, 5, 10 … that is not below ``value``: what an axis ends with."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** floor(log10(value))
    return next(step * scale for step in (1, 2, 2.5, 5, 10) if step * scale >= value * (1 - 1e-9))


def build_plot(
    name: str,
    columns: Sequence[Column],
    tones: Sequence[str],
    format_value: Callable[[float], str],
    *,
    legend: Sequence[tuple[str, str]] = (),
    top: float | None = None,
    note: str = "",
) -> Plot:
    """Build a plot of stacked bars. ``top``: what its upper edge stands for, by default what the highest bar needs."""
    highest = max((sum(value or 0 for value in column.values) for column in columns), default=0.0)
    edge = top or round_up(highest)
    bars = [_build_bar(SLOT * number, column, tones, edge) for number, column in enumerate(columns)]
    return Plot(name, format_value(edge) if highest else "", bars, legend, note)


def _build_bar(x: float, column: Column, tones: Sequence[str], edge: float) -> Bar:
    parts, bottom = [], HEIGHT
    for tone, value in zip(tones, column.values, strict=True):
        if value is None:  # a low bar that stands for no amount
            parts.append(Part("unknown", round(bottom - 8, 2), 8.0))
            bottom -= 8
        elif value > 0:
            height = min(max(value / edge * HEIGHT, _LEAST), bottom)
            parts.append(Part(tone, round(bottom - height, 2), round(height, 2)))
            bottom -= height
    return Bar(x, column.title, column.href, parts)


BAR_WIDTH = SLOT - _GAP
