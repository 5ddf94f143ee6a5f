"""``perdure answer``: what tools ask of people, and calls that a client is to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError
from ..printing import print_line
from .conversation import printable
from .find import on_run
from .options import ByOption, Output, OutputOptions, RunArgument, StoreOptions, json_value, message_of, print_json

if TYPE_CHECKING:
    from ..run import Run
    from ..types.approval import DecidedApproval, PendingApproval


def answer(
    id: RunArgument,
    call_or_value: Annotated[
        str | None,
        typer.Argument(metavar="[CALL] VALUE", help="Id of the call, the only one without.", show_default=False),
    ] = None,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="", help="The answer: text, or JSON where another one is asked for; - reads stdin.", hidden=True
        ),
    ] = None,
    input: Annotated[
        str | None, typer.Option("--input", help="The answer as JSON; - reads stdin.", show_default=False)
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", "-e", help="Why there is no answer.", show_default=False)
    ] = None,
    by: ByOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Answer what a tool asks, or give the result of a call that a client is to run. `perdure approvals` lists both."""
    apart = input is not None or error is not None
    call, text = (call_or_value, value) if apart or value is not None else (None, call_or_value)
    if sum(one is not None for one in (text, input, error)) != 1:
        raise InvalidInputError(
            "an answer has a value, an --input or an --error",
            hint='For instance perdure answer ID "the savings account"',
        )
    given = json_value(message_of(input), "--input") if input is not None else None

    async def act(run: Run) -> DecidedApproval:
        one = await _waiting(run, call)
        said = given if text is None else value_of(message_of(text), one.form if one else None)
        return await run.answer(call, said, error=error, hash=one.hash if one else None)

    answered = on_run(server, id, act, by=by)
    if output is not Output.TEXT:
        print_json(answered.model_dump(mode="json"), output=output)
        return
    print_line(f"{printable(answered.name)} is answered by {printable(answered.by or 'nobody')}")


async def _waiting(run: Run, call: str | None) -> PendingApproval | None:
    """What is answered: it waits now. None where that is not clear, which the run is to say."""
    waiting = [one for one in (await run.status()).approvals if one.kind != "approval" and call in (None, one.call_id)]
    return waiting[0] if len(waiting) == 1 else None


def value_of(text: str, form: dict[str, Any] | None) -> Any:
    """What somebody has typed as an answer to ``form``. Raises ``InvalidInputError`` for what is no JSON."""
    from ..types.form import misfit

    if form is None or misfit(form, text) is None:
        return text
    return json_value(text, "the answer")
