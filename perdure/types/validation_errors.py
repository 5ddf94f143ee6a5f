"""Text of a pydantic error, for people: where the input is wrong, and why. Short for input of any size, and without it.

What a model is told of its arguments is ``tools.json_schema.explain_validation_error``: that shows the values, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .messages import clean_text

Place = Sequence[str | int]

_PLACE_CHARS = 100
_REASON_CHARS = 500


def describe_validation_error(
    error: ValidationError, whole: str, *, within: str = "", most: int = 1, content: bool = False
) -> str:
    """``turn.tokens: Input should be a valid integer``, of the first problem or the first ``most``.

    ``whole`` stands in the place of the path where the value itself is wrong, and ``within`` in front of every path.
    ``content``: the value is a message, or has one in a field. Of the forms that a message may have, only problems of
    the one that it comes nearest to are told, and paths to a part are without their names: ``content.0.media_type``.
    """
    problems = _problems(error)
    if content:
        problems = _of_nearest_form(problems)
    said = [f"{_path(problem['loc'], within, content) or whole}: {_reason(problem)}" for problem in problems[:most]]
    if 1 < most < len(problems):
        said.append(f"and {len(problems) - most} more")
    return "; ".join(said)


def first_problem(error: ValidationError) -> tuple[Place, str]:
    """The path and the reason of the first problem, for a caller that names places in its own way."""
    problem = _problems(error)[0]
    return problem["loc"], _reason(problem)


def _problems(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False, include_input=False)


def _reason(problem: ErrorDetails) -> str:
    return _shortened(problem["msg"], _REASON_CHARS)  # may repeat a tag of the input, or what an author's code says


def _path(place: Place, within: str, content: bool) -> str:
    steps = _without_forms(place) if content else place
    return _shortened(".".join(map(str, (within, *steps) if within else steps)), _PLACE_CHARS)  # a key has any length


def _shortened(text: str, most: int) -> str:
    return clean_text(text if len(text) <= most else f"{text[: most - 1]}…")


def _of_nearest_form(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """``problems``; of those of the field that has a content, those that lie deepest."""
    field = next((problem["loc"][0] for problem in problems if "content" in problem["loc"]), None)
    depth = max((len(problem["loc"]) for problem in problems if problem["loc"][:1] == (field,)), default=0)
    return [problem for problem in problems if problem["loc"][:1] != (field,) or len(problem["loc"]) == depth]


def _without_forms(place: Place) -> Place:
    """``place`` without the names that pydantic gives to the forms of a part and of its content: types, and tags."""
    if "content" not in place or not any(isinstance(step, int) for step in place):
        return place
    kept: list[str | int] = []
    before: int | str = ""
    for step in place:
        tag = isinstance(before, int) and step in ("text", "file")
        if isinstance(step, int) or (step.isidentifier() and step.islower() and not tag):
            kept.append(step)
        before = step
    return kept
