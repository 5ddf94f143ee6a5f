"""Branches of a step: what a policy asks of other agents, and what came of it, as far as the loop is told."""

from __future__ import annotations

import operator

from pydantic import Field

from .messages import BlobRef, Data

BRANCHES = 10
"""Branches of one step, all rounds of its policy together: what they answer stands in one activity's input."""
MODEL_BYTES = 4 * 1024
"""Of the models that one branch is asked with: those of all branches stand in one activity's outcome."""
SAID_CHARS = 100
"""Of what a branch was asked, as errors name it."""


class BranchAsked(Data):
    """A branch that a policy waits for."""

    key: str
    """Hash of what is asked: by it the policy that runs again is given the answer."""
    said: str
    """What is asked, for a person."""
    agent: str
    message: str | None = None
    """What the agent is asked behind the conversation; None for nothing, or where it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``message`` is the JSON of a value of the agent's input type."""
    head: str | None = None
    """Where the forked conversation ends; None where the agent sees the message alone. Set by the transcript stage."""
    model: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Models that are asked in place of the agent's."""


class BranchOutcome(Data):
    """How a branch ended: with an answer, or with an error."""

    key: str
    said: str
    agent: str
    op: int
    """Number of the operation: its run is ``<context_id>/<op>``."""
    content: str = ""
    """The answer; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    typed: bool = Field(default=False, exclude_if=operator.not_)
    """``content`` is JSON, of the agent's output type."""
    error_type: str | None = None
    """Class name of what it failed with; ``error`` is its message."""
    error: str | None = None
