"""``perdure approvals``, ``approve`` and ``deny``: what waits for people, and what they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError
from ..terminal import escape_line, print_line
from .connection import act_on_run, open_client
from .options import (
    ByOption,
    OutputFormat,
    OutputOptions,
    RunArgument,
    ServerOptions,
    StoreOptions,
    parse_json_object,
    parse_json_value,
    print_json,
    read_message_argument,
)
from .output import format_arguments as shown_arguments
from .output import format_conversation

if TYPE_CHECKING:
    from ..client.inbox import PendingCall
    from ..client.run import Run
    from ..types.approvals import DecidedApproval, PendingApproval, StandingApproval
    from ..types.messages import Message


# ---
# ``perdure answer``: what tools ask of people, and calls that a client is to run.


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
    given = parse_json_value(read_message_argument(input), "--input") if input is not None else None

    async def act(run: Run) -> DecidedApproval:
        one = await _find_unanswered_call(run, call)
        said = given if text is None else parse_answer_value(read_message_argument(text), one.form if one else None)
        return await run.answer(call, said, error=error, hash=one.hash if one else None)

    answered = act_on_run(server, id, act, by=by)
    if output is not OutputFormat.TEXT:
        print_json(answered.model_dump(mode="json"), output=output)
        return
    print_line(f"{escape_line(answered.name)} is answered by {escape_line(answered.by or 'nobody')}")


async def _find_unanswered_call(run: Run, call: str | None) -> PendingApproval | None:
    """What is answered: it waits now. None where that is not clear, which the run is to say."""
    waiting = [one for one in (await run.status()).approvals if one.kind != "approval" and call in (None, one.call_id)]
    return waiting[0] if len(waiting) == 1 else None


def parse_answer_value(text: str, form: dict[str, Any] | None) -> Any:
    """What somebody has typed as an answer to ``form``. Raises ``InvalidInputError`` for what is no JSON."""
    from ..types.forms import find_form_mismatch

    if form is None or find_form_mismatch(form, text) is None:
        return text
    return parse_json_value(text, "the answer")


CallArgument = Annotated[
    str | None, typer.Argument(metavar="CALL", help="Id of the call; the only one without.", show_default=False)
]
CommentOption = Annotated[str | None, typer.Option("--comment", "-m", help="Why; the model is told.")]


def approvals(
    agent: Annotated[str | None, typer.Option(help="Of this agent alone.", show_default=False)] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing, and show the whole conversations.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List the calls that wait for somebody's approval or answer, with what led to them."""

    async def go() -> list[tuple[PendingCall, list[Message]]]:
        async with open_client(server) as client:
            return [(one, await _read_pending_conversation(one)) for one in await client.approvals(agent=agent)]

    found = asyncio.run(go())
    if output is not OutputFormat.TEXT:
        print_json([_serialize_pending_call(one, _format_last_user_message(led)) for one, led in found], output=output)
        return
    if not found:
        print_line("nothing waits for a person")
    for one, led in found:
        for line in _format_pending_call(one, led, full=full):
            print_line(line)


def approve(
    id: RunArgument,
    call: CallArgument = None,
    comment: CommentOption = None,
    arguments: Annotated[
        str | None, typer.Option(help="Arguments to call the tool with instead: a JSON object.", show_default=False)
    ] = None,
    hash: Annotated[
        str | None,
        typer.Option(help="Of what was looked at, as `approvals -o json` has it: refused where another call waits."),
    ] = None,
    always: Annotated[
        bool, typer.Option("--always", help="And every later call of the tool in this conversation; see `revoke`.")
    ] = False,
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Approve a call that waits, maybe with other arguments."""
    changed = parse_json_object(arguments, "--arguments", """For instance: '{"amount": 3}'""")

    async def act(run: Run) -> DecidedApproval:
        return await run.approve(call, comment=comment, arguments=changed, always=always, hash=hash)

    _print_decision(act_on_run(server, id, act, by=by), output)


def deny(
    id: RunArgument,
    call: CallArgument = None,
    comment: CommentOption = None,
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Deny a call that waits: it does not run, and the model is told why."""

    async def act(run: Run) -> DecidedApproval:
        return await run.deny(call, comment=comment)

    _print_decision(act_on_run(server, id, act, by=by), output)


def revoke(
    id: RunArgument,
    tool: Annotated[str, typer.Argument(help="The tool's name; `perdure show` lists what stands.")],
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Let the calls of a tool wait for approval again, which somebody has approved for always."""

    async def act(run: Run) -> list[StandingApproval]:
        return await run.revoke(tool)

    gone = act_on_run(server, id, act, by=by)
    if output is not OutputFormat.TEXT:
        print_json([one.model_dump(mode="json") for one in gone], output=output)
        return
    for one in gone:
        print_line(f"calls of {escape_line(one.tool)} wait again; {escape_line(one.by)} had approved them at {one.at}")


def _format_pending_call(one: PendingCall, led: list[Message], *, full: bool) -> Iterator[str]:
    """A call that waits, and what led to it: what the user said last, or all of it."""
    said = "…" if one.arguments is None else shown_arguments(one.arguments, full=full)
    yield f"{one.run_id}  {one.call_id}  {escape_line(one.agent)}: {escape_line(one.tool)}({escape_line(said)})"
    if one.kind != "approval":
        yield f"    {one.kind}: {escape_line(one.question or 'a client is to run it')}"
    if one.form is not None:
        yield f"    form: {escape_line(json.dumps(one.form, ensure_ascii=False))}"
    if one.expires is not None:
        yield f"    until {one.expires:%Y-%m-%d %H:%M} UTC"
    if full:
        yield from (f"    {line}" for line in format_conversation(led, full=True))
    elif last := _format_last_user_message(led):
        yield f"    {escape_line(last)}"


async def _read_pending_conversation(one: PendingCall) -> list[Message]:
    """The conversation, where it can be read."""
    from ..errors import PerdureError

    try:
        return await one.run.transcript()
    except PerdureError:
        return []


def _format_last_user_message(messages: list[Message]) -> str:
    """What the user said last."""
    said = [message for message in messages if message.role == "user" and message.text]
    text = " ".join(said[-1].text.split()) if said else ""
    by = f"{said[-1].by}: " if said and said[-1].by else ""
    return by + (text if len(text) <= 200 else text[:200] + "…")


def _serialize_pending_call(one: PendingCall, led: str) -> dict[str, Any]:
    return {
        "run": one.run_id,
        "kind": one.kind,
        "agent": one.agent,
        "call": one.call_id,
        "tool": one.tool,
        "arguments": one.arguments,
        "hash": one.hash,
        "question": one.question,
        "form": one.form,
        "since": one.since.isoformat() if one.since else None,
        "expires": one.expires.isoformat() if one.expires else None,
        "said": led or None,
    }


def _print_decision(decided: DecidedApproval, output: OutputFormat) -> None:
    if output is not OutputFormat.TEXT:
        print_json(decided.model_dump(mode="json"), output=output)
        return
    more = ", with other arguments" if decided.changed else ", as all later calls of it" if decided.always else ""
    print_line(f"{escape_line(decided.name)} is {decided.state} by {escape_line(decided.by or 'nobody')}{more}")
