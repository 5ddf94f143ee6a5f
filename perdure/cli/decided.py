"""What people decided, answered and approved for all calls of a tool, as ``perdure show`` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .conversation import printable

if TYPE_CHECKING:
    from ..types.approval import DecidedApproval
    from ..types.interface import Status


def decided(past: Sequence[DecidedApproval]) -> list[str]:
    """Who approved, denied or answered which call, a line each, in their order."""
    return [_line(one) for one in past]


def standing(status: Status) -> list[str]:
    """Who has approved every call of which tool, a line each."""
    return [
        f"always approved: {printable(one.tool)}, by {printable(one.by)} at {one.at}; "
        f"`perdure revoke {status.context_id} {printable(one.tool)}` takes it back"
        for one in status.standing
    ]


def _line(one: DecidedApproval) -> str:
    how = ", with other arguments" if one.changed else ""
    how += ", as all later calls of it" if one.always else ""
    how += f": {one.comment}" if one.comment else ""
    return printable(f"{one.name} ({one.call_id}): {one}{how}")
