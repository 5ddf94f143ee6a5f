"""The texts for "OutcomeUnknown": the result of a tool call that may have happened or not, one text for each case.

The model is told so, and the call is not run again. The journal, the loop, remote calls and forks use these texts.
"""

from __future__ import annotations

OUTCOME_UNKNOWN = "OutcomeUnknown"
"""Type of the error. The content of the result begins with it, as with the type of each other error of a call."""

MAY_HAVE_HAPPENED = "It may have happened or not."

RUN_ENDED = f"{OUTCOME_UNKNOWN}: the run was ended before this call reported back. {MAY_HAVE_HAPPENED}"
"""The run was terminated or timed out during the call, and a later execution closes its transcript."""

FORKED = f"{OUTCOME_UNKNOWN}: this call had not finished when the conversation was forked. {MAY_HAVE_HAPPENED}"
"""The fork begins during the call. The call continues in the conversation that was forked."""


def format_lost_worker(name: str) -> str:
    """The worker of a tool that must not run twice was lost during the call."""
    return (
        f"{OUTCOME_UNKNOWN}: {name} was started, and its worker was lost before it reported back. "
        f"{MAY_HAVE_HAPPENED} It was not run again. Check before you repeat it."
    )


def format_lost_workers(name: str, starts: int) -> str:
    """The worker of an idempotent tool was lost during each of its ``starts`` attempts, the most that are allowed."""
    return (
        f"{OUTCOME_UNKNOWN}: {name} was started {starts} times, and its worker was lost each time. "
        f"{MAY_HAVE_HAPPENED} It is not run again."
    )


def describe_missing_answer(name: str, timeout: float) -> str:
    """The worker of a remote tool did not answer in time. Without the type of the error."""
    return f"{name} has not answered within {timeout:g} s. {MAY_HAVE_HAPPENED}"


def describe_refused_answer(reason: str) -> str:
    """The answer of a remote tool could not be recorded. Without the type of the error."""
    return f"{reason}. The call may have succeeded."


def describe_lost_connection(reason: str) -> str:
    """The connection to an MCP server was lost during the call. A ``ToolError`` has this text."""
    return f"{reason}; the call may have happened or not"
