"""Describes pydantic errors for people: the path and the reason. Short for any input, and never repeats the input.

For a model, ``tools.json_schema.explain_validation_error`` describes wrong arguments with their values.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .messages import clean_text

ErrorPath = Sequence[str | int]

_PATH_CHARS = 100
_REASON_CHARS = 500


def describe_validation_error(
    error: ValidationError, value_name: str, *, prefix: str = "", max_problems: int = 1, content: bool = False
) -> str:
    """Return ``turn.tokens: Input should be a valid integer``, for the first problem or the first ``max_problems``.

    ``value_name`` replaces the path if the value itself is wrong; ``prefix`` precedes every path. ``content``: the
    value is a message, or has one in a field. A message may have several forms: only the problems of the nearest form
    are reported, and paths omit the names of forms: ``content.0.media_type``.
    """
    problems = _list_problems(error)
    if content:
        problems = _select_nearest_form(problems)
    texts = [
        f"{_format_path(problem['loc'], prefix, content) or value_name}: {_get_reason(problem)}"
        for problem in problems[:max_problems]
    ]
    if 1 < max_problems < len(problems):
        texts.append(f"and {len(problems) - max_problems} more")
    return "; ".join(texts)


def get_first_problem(error: ValidationError) -> tuple[ErrorPath, str]:
    """Return the path and the reason of the first problem, for a caller that formats paths in its own way."""
    problem = _list_problems(error)[0]
    return problem["loc"], _get_reason(problem)


def _list_problems(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False, include_input=False)


def _get_reason(problem: ErrorDetails) -> str:
    return _shorten(problem["msg"], _REASON_CHARS)  # may repeat a tag of the input, or the text of an author's error


def _format_path(path: ErrorPath, prefix: str, content: bool) -> str:
    steps = _strip_form_names(path) if content else path
    return _shorten(".".join(map(str, (prefix, *steps) if prefix else steps)), _PATH_CHARS)  # a key has any length


def _shorten(text: str, max_chars: int) -> str:
    return clean_text(text if len(text) <= max_chars else f"{text[: max_chars - 1]}…")


def _select_nearest_form(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return ``problems``; for the field that has a content, only those with the longest paths."""
    field = next((problem["loc"][0] for problem in problems if "content" in problem["loc"]), None)
    depth = max((len(problem["loc"]) for problem in problems if problem["loc"][:1] == (field,)), default=0)
    return [problem for problem in problems if problem["loc"][:1] != (field,) or len(problem["loc"]) == depth]


def _strip_form_names(path: ErrorPath) -> ErrorPath:
    """Return ``path`` without the names of types and tags that pydantic adds for the forms of a part or content."""
    if "content" not in path or not any(isinstance(step, int) for step in path):
        return path
    kept: list[str | int] = []
    previous: int | str = ""
    for step in path:
        is_tag = isinstance(previous, int) and step in ("text", "file")
        if isinstance(step, int) or (step.isidentifier() and step.islower() and not is_tag):
            kept.append(step)
        previous = step
    return kept
