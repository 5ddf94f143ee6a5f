"""Calls that are run elsewhere, by other workers or by a client: what perdure's worker does before and after them."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from .messages import BlobRef, Data


class Around(Data):
    """Which hooks the worker runs around a call that is run elsewhere."""

    before: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks see it before it is handed over."""
    after: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks see its result."""
    errors: bool = Field(default=False, exclude_if=operator.not_)
    """Hooks are told where it fails."""


class Cleared(Data):
    """The call may be handed over."""

    arguments: dict[str, Any] | None = None
    """What it is made with, where hooks have changed that."""
    around: Around = Around()
    """What there is behind it, as the worker has that now."""


class Before(Data):
    """The worker looks at a call before it is handed over: rules, arguments, hooks."""

    kind: Literal["before"] = "before"
    client: bool = Field(default=False, exclude_if=operator.not_)
    """A client is to run it, and is asked in this form and time (``AsCallback``)."""
    form: dict[str, Any] | None = None
    expires: float | None = None


class After(Data):
    """Hooks see what it came to."""

    kind: Literal["after"] = "after"
    arguments: dict[str, Any] | None = None
    """What the call was made with, where hooks had changed that."""
    text: str | None = None
    blob: BlobRef | None = None
    """Where the text is that a client has put into the store."""
    is_error: bool = False
    error_type: str | None = None
    """Class of what it failed with, in whatever language."""
    answered_by: str | None = None
    """Of a callback: who gave the result; empty where nobody said."""


Side = Annotated[Before | After, Field(discriminator="kind")]
