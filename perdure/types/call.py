"""A tool call of a reply, as the workflow is told of it: what is to become of it stands with it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from .approval import Asks
from .background import AsCollect, AsTell
from .elsewhere import Around
from .messages import BlobRef, Data
from .question import AsCallback


class Refused(Data):
    """The call does not run; the model is told why."""

    kind: Literal["refused"] = "refused"
    text: str


class Answered(Data):
    """The call has its result: it is recorded behind the reply, in the same node."""

    kind: Literal["answered"] = "answered"
    text: str
    is_error: bool = False


class AsActivity(Data):
    """The call is a Temporal activity of its own."""

    kind: Literal["activity"] = "activity"
    timeout: float
    """Seconds that one attempt may take."""
    idempotent: bool = False
    retries: int | None = None
    """How often it may run again after a lost worker or ``Retry``; None is without bound."""
    task_queue: str | None = None
    inline: bool = False
    """The tool may run inside the model activity; it did not, for want of time."""
    toolset: str | None = None
    """The toolset that the tool is of."""


class Inline(Data):
    """The call ran inside the model activity; its outcome is in the journal."""

    kind: Literal["inline"] = "inline"
    key: str
    content: str | None = None
    blob: BlobRef | None = None
    is_error: bool = False
    aborted: str | None = None
    """The call ended the run: the error's text, as of ``ToolOutput.status``."""


class AsRemote(Data):
    """The call is an activity of a worker that knows nothing of perdure: plain JSON arguments, a plain JSON result."""

    kind: Literal["remote"] = "remote"
    task_queue: str
    timeout: float
    """Seconds that one attempt may take."""
    idempotent: bool = False
    retries: int | None = None
    """How often it may run again where its outcome is not known; None is without bound."""
    around: Around = Around()


class AsSubagent(Data):
    """The call is a child workflow of another agent."""

    kind: Literal["subagent"] = "subagent"
    agent: str
    message: str = ""
    """What it is asked; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``message`` is the JSON of a value of the agent's input type."""
    background: int | None = Field(default=None, exclude_if=operator.not_)
    """It runs in background, where at most so many do at once; None where the call waits for it."""


Disposition = Annotated[
    Refused | Answered | AsActivity | AsRemote | Inline | AsSubagent | AsCollect | AsTell | AsCallback,
    Field(discriminator="kind"),
]


class Call(Data):
    """A tool call of the reply, with what is to become of it, from the code that showed the model the schema."""

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None: too large for history; it is read from the transcript node."""
    definition: str = ""
    """Hash of the tool's definition that the model saw."""
    disposition: Disposition
    approval: Asks | None = Field(default=None, exclude_if=operator.not_)
    """It runs when somebody has approved it."""
