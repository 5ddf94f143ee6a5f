"""``perdure approvals``, ``approve``, ``deny``, ``revoke`` and ``answer``: decide what waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import escape_line, print_line, truncate_text
from ..errors import InvalidInputError, PerdureError
from .connection import ActorOptions, ActorStoreOptions, StoreOptions, call_client, call_run
from .mcp import build_login_command
from .options import RunArgument, parse_json_object, parse_json_value, read_text_argument
from .output import OutputOptions, find_own_summary, format_call, format_conversation
from .show import format_decision_scope

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.inbox import PendingCall
    from ..client.run import Run
    from ..types.approvals import DecidedApproval, StandingApproval, WaitingCall
    from ..types.messages import Message


def answer(
    id: RunArgument,
    call_or_value: Annotated[
        str | None, typer.Argument(metavar="[CALL] VALUE", help="Id of the call; by default the only one.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="", help="The answer: text, or JSON if the form asks for another type; - reads stdin.", hidden=True
        ),
    ] = None,
    input: Annotated[str | None, typer.Option("--input", help="The answer as JSON; - reads stdin.")] = None,
    error: Annotated[str | None, typer.Option("--error", "-e", help="Why there is no answer.")] = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Answer a tool's question, or give the result of a call that a client runs. `perdure approvals` lists both."""
    has_value_option = input is not None or error is not None
    call, text = (call_or_value, value) if has_value_option or value is not None else (None, call_or_value)
    if sum(given is not None for given in (text, input, error)) != 1:
        hint = 'For instance: perdure answer ID "the savings account"'
        raise InvalidInputError("give exactly one of a value, --input or --error", hint=hint)
    json_value = parse_json_value(read_text_argument(input), "--input") if input is not None else None

    async def act(run: Run) -> DecidedApproval:
        from ..client.progress import refuse_without_worker

        pending_call = await _find_unanswered_call(run, call)
        form, digest = (pending_call.form, pending_call.hash) if pending_call else (None, None)
        answer = json_value if text is None else _parse_answer_value(read_text_argument(text), form)
        return await refuse_without_worker(run, run.answer(call, answer, error=error, hash=digest))

    answered = call_run(server, id, act)
    output.print_result(answered.model_dump(mode="json"), f"{answered.tool} is answered{_format_actor(answered)}")


async def _find_unanswered_call(run: Run, call: str | None) -> WaitingCall | None:
    """The pending call that this answers. None when it is ambiguous; ``Run.answer`` then raises the error."""
    pending = (await run.status()).approvals
    matching = [waiting for waiting in pending if waiting.kind != "approval" and call in (None, waiting.call_id)]
    return matching[0] if len(matching) == 1 else None


def _parse_answer_value(text: str, form: dict[str, Any] | None) -> Any:
    """``text`` itself if it fits ``form``, else its value as JSON. Raises ``InvalidInputError``."""
    from ..types.forms import find_form_mismatch

    if form is None or find_form_mismatch(form, text) is None:
        return text
    return parse_json_value(text, "the answer")


CallArgument = Annotated[str | None, typer.Argument(metavar="CALL", help="Id of the call; by default the only one.")]
CommentOption = Annotated[str | None, typer.Option("--comment", "-m", help="Why; the model is told.")]
HashOption = Annotated[
    str | None,
    typer.Option(help="Hash of the reviewed call, from `approvals -o json`; refused if another call waits."),
]


def approvals(
    agent: Annotated[str | None, typer.Option(help="Only calls of this agent.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing, and show the whole conversations.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List the calls that wait for an approval or an answer, with what led to them."""

    async def list_calls(client: Client) -> list[tuple[PendingCall, list[Message]]]:
        return [(call, await _read_transcript(call)) for call in await client.approvals(agent=agent)]

    pending = call_client(server, list_calls)
    if output.format != "text":
        output.print_json([_serialize_pending_call(call, messages) for call, messages in pending])
        return
    if not pending:
        print_line("no pending approvals or questions")
    for call, messages in pending:
        for line in _format_pending_call(call, messages, full=full):
            print_line(line)


def approve(
    id: RunArgument,
    call: CallArgument = None,
    comment: CommentOption = None,
    arguments: Annotated[
        str | None, typer.Option(help="Call the tool with these arguments instead: a JSON object.")
    ] = None,
    hash: HashOption = None,
    always: Annotated[
        bool, typer.Option("--always", help="Also approve all later calls of the tool here; see `revoke`.")
    ] = False,
    *,
    server: ActorOptions,
    output: OutputOptions,
) -> None:
    """Approve a pending call, or call the tool with other arguments."""
    changed = parse_json_object(arguments, "--arguments", """For instance: '{"amount": 3}'""")

    async def act(run: Run) -> DecidedApproval:
        from ..client.progress import refuse_without_worker

        return await refuse_without_worker(
            run, run.approve(call, comment=comment, arguments=changed, always=always, hash=hash)
        )

    _print_decision(call_run(server, id, act), output)


def deny(
    id: RunArgument,
    call: CallArgument = None,
    comment: CommentOption = None,
    hash: HashOption = None,
    *,
    server: ActorOptions,
    output: OutputOptions,
) -> None:
    """Deny a pending call. It does not run, and the model is told why."""

    async def act(run: Run) -> DecidedApproval:
        from ..client.progress import refuse_without_worker

        return await refuse_without_worker(run, run.deny(call, comment=comment, hash=hash))

    _print_decision(call_run(server, id, act), output)


def revoke(
    id: RunArgument,
    tool: Annotated[str, typer.Argument(help="Name of the tool; `perdure show` lists standing approvals.")],
    *,
    server: ActorOptions,
    output: OutputOptions,
) -> None:
    """Revoke the standing approval of a tool: its calls wait for approval again."""

    async def act(run: Run) -> list[StandingApproval]:
        from ..client.progress import refuse_without_worker

        return await refuse_without_worker(run, run.revoke(tool))

    revoked = call_run(server, id, act)
    output.print_result([approval.model_dump(mode="json") for approval in revoked], map(_format_revoked, revoked))


def _format_revoked(approval: StandingApproval) -> str:
    return f"calls of {approval.tool} wait again; {approval.by} had approved them at {approval.at}"


def _format_pending_call(call: PendingCall, messages: list[Message], *, full: bool) -> Iterator[str]:
    """A pending call, and what led to it: the user's last message, or the whole conversation."""
    tool = format_call(call.tool, call.arguments, full=full)
    summary = find_own_summary(call.summary, call.tool)
    yield f"{call.run_id}  {call.call_id}  {escape_line(call.agent)}: {summary or tool}"
    if summary:
        yield f"    {tool}"
    if call.kind != "approval":
        yield f"    {call.kind}: {escape_line(call.question or 'a client runs it')}"
    if call.consent is not None:
        yield f"    sign in: {escape_line(build_login_command(call.consent))}"
    elif call.form is not None:
        yield f"    form: {escape_line(json.dumps(call.form, ensure_ascii=False))}"
    if call.expires is not None:
        yield f"    until {call.expires:%Y-%m-%d %H:%M} UTC"
    if full:
        yield from (f"    {line}" for line in format_conversation(messages, full=True))
    elif last_message := _format_last_user_message(messages):
        yield f"    {escape_line(last_message)}"


async def _read_transcript(call: PendingCall) -> list[Message]:
    """The conversation; [] if it cannot be read."""
    try:
        return await call.run.transcript()
    except PerdureError:
        return []


def _format_last_user_message(messages: list[Message]) -> str:
    for message in reversed(messages):
        if message.role == "user" and message.text:
            by = f"{message.by}: " if message.by else ""
            return by + truncate_text(" ".join(message.text.split()), 200)
    return ""


def _serialize_pending_call(call: PendingCall, messages: list[Message]) -> dict[str, Any]:
    return {
        "run_id": call.run_id,
        "kind": call.kind,
        "agent": call.agent,
        "call_id": call.call_id,
        "tool": call.tool,
        "arguments": call.arguments,
        "summary": call.summary,
        "hash": call.hash,
        "question": call.question,
        "form": call.form,
        "consent": None if call.consent is None else call.consent.model_dump(mode="json"),
        "since": call.since,
        "expires": call.expires,
        "said": _format_last_user_message(messages) or None,
    }


def _format_actor(decision: DecidedApproval) -> str:
    return f" by {decision.by}" if decision.by else ""


def _print_decision(decision: DecidedApproval, output: OutputOptions) -> None:
    text = f"{decision.tool} is {decision.state}{_format_actor(decision)}{format_decision_scope(decision)}"
    output.print_result(decision.model_dump(mode="json"), text)
