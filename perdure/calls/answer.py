"""Decides whether a reply is the answer: by the finish protocol, the agent's output type, and its output validators.

A rejected answer goes back to the model, ``parse_retries`` times; then the run fails with ``ParseError``. A reply is
paid for and always recorded, so an error caused by the reply is returned as an outcome, not raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..agent.output import OutputError, OutputValidator
from ..agent.spec import AgentSpec
from ..errors import AbortError, HookError, ModelRetry, OutputLimitError, ParseError, PerdureError
from ..loop.finish import (
    MAX_CUT_REPLIES,
    NO_ANSWER_REASONS,
    build_cut_call_text,
    build_cut_failure_text,
    build_cut_reply_text,
    extract_answer,
    extract_forced_answer,
    list_cut_calls,
)
from ..loop.transcript import build_malformed_arguments_text
from ..tools import RunContext, truncate_error_text
from ..types.interface import FINISH_TOOL
from ..types.messages import Message, ToolCallPart, clean_text
from ..types.tool_calls import AnsweredCall, RefusedCall
from ..types.wire import FinalAnswer, ModelInput, TurnFailure
from .author_loop import AuthorLoop, OverdueError
from .step_policy import StepResult

VALIDATOR_TIMEOUT = 60.0
"""Seconds that an output validator may take, from its start."""
_ERROR_CHARS = 600
"""Maximum characters of an error, and of the model's text, in a ``ParseError``."""
_ACCEPTED_TEXT = "The answer is accepted; the task is finished."
_NOT_RUN_FINISHED = "not run: the task was finished in the same reply"
_NOT_RUN_FAILED = "not run: the run failed"
_NOT_RUN_CUT = f"not run: the output limit cut another call of the same reply; call {FINISH_TOOL} again"
_NOT_RUN_FORCED = f"not run: the task has to be finished; call {FINISH_TOOL}"


class _AuthorCodeError(Exception):
    """The author's code failed: the run fails with ``error``."""

    def __init__(self, error: PerdureError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class ReplyOutcome:
    """The effect of a reply on its turn."""

    finish: FinalAnswer | None = None
    rejected: bool = False
    cut: bool = False
    """The output limit cut the reply within a call, or before it had an answer or a call."""
    reminder: str | None = None
    failed: TurnFailure | None = None
    answered: Mapping[str, AnsweredCall | RefusedCall] = field(default_factory=dict)
    """The dispositions of the calls that the engine answers itself, by call id."""


class AnswerReader:
    """Reads the answer of one iteration. The author's code runs on the author's side."""

    def __init__(self, author: AuthorLoop, agent: AgentSpec, task: ModelInput, ctx: RunContext[Any]) -> None:
        self._author = author
        self._agent = agent
        self._task = task
        self._ctx = ctx
        self._is_forced = task.is_forced

    async def read_reply(self, message: Message) -> ReplyOutcome:
        """Return the outcome of ``message`` for the turn. Raises errors that a retry may avoid (store unavailable)."""
        if list_cut_calls(message) and not self._is_forced:
            return self._tell_of_cut(message)
        try:
            if self._agent.finish == "tool":
                outcome = await self._read_tool_reply(message)
            else:
                outcome = await self._read_text_reply(message)
        except _AuthorCodeError as error:
            return build_failed_outcome(message, error.error)
        is_nothing = outcome == ReplyOutcome() and not message.tool_calls and not self._is_forced
        return self._tell_of_cut(message) if is_nothing and message.finish_reason == "length" else outcome

    def _tell_of_cut(self, message: Message) -> ReplyOutcome:
        """Build the outcome of a reply that the output limit cut, which is no answer: the model hears of it and tries
        again, or the run fails."""
        count = (self._task.cut or 0) + 1
        if count > MAX_CUT_REPLIES:
            text = build_cut_failure_text(self._agent.name, message, count)
            failed = build_failed_outcome(message, OutputLimitError(text))
            return replace(failed, cut=True)
        finish_calls = [part for part in message.tool_calls if part.name == FINISH_TOOL]
        answered = {part.id: RefusedCall(text=_NOT_RUN_CUT) for part in finish_calls}
        answered |= {part.id: RefusedCall(text=build_cut_call_text(part)) for part in list_cut_calls(message)}
        reminder = None if message.tool_calls else build_cut_reply_text()
        return ReplyOutcome(cut=True, reminder=reminder, answered=answered)

    async def accept_step_answer(self, stepped: StepResult) -> FinalAnswer:
        """Return a step policy's answer after the output validators. Raises ``HookError``, ``AbortError``."""
        finish = stepped.finish
        assert finish is not None, "it has finished"
        if not self._agent.output_validators:
            return finish
        try:
            value = await self._run_validators(stepped.value)
            made: FinalAnswer = await self._run_output_type(self._agent.output_type.build_finish, value)
        except (OutputError, ModelRetry) as error:
            raise HookError(
                f"step.finish: the answer of agent {self._agent.name!r} was not accepted: "
                f"{_truncate_error(clean_text(str(error)))}",
                hint="No model sees this error: finish with another answer, or let the model give one.",
            ) from error
        except _AuthorCodeError as error:
            raise error.error from error
        return made.model_copy(update={"called": finish.called})

    async def _read_text_reply(self, message: Message) -> ReplyOutcome:
        reason = message.finish_reason or "stop"
        finish = extract_answer(self._agent.finish, message, reason)
        if self._is_forced:
            finish = extract_forced_answer(self._agent.finish, message.text)
        if finish is None or not self._agent.output_validators or reason in NO_ANSWER_REASONS:
            return ReplyOutcome(finish)
        try:
            content = clean_text(await self._run_validators(finish.content))
            return ReplyOutcome(finish.model_copy(update={"content": content}))
        except (OutputError, ModelRetry) as error:
            return self._reject_reply(message, _describe_rejection(error), {})

    async def _read_tool_reply(self, message: Message) -> ReplyOutcome:
        if not message.tool_calls and (message.finish_reason or "stop") in NO_ANSWER_REASONS:
            return ReplyOutcome(FinalAnswer(content=message.text))
        finish_calls = [part for part in message.tool_calls if part.name == FINISH_TOOL]
        if not message.tool_calls:
            return await self._read_xml_reply(message)
        problems: dict[str, str] = {}
        for part in finish_calls:
            try:
                if part in list_cut_calls(message):
                    raise OutputError(build_cut_call_text(part))
                finish = await self._accept_finish_call(part)
            except (OutputError, ModelRetry) as error:
                problems[part.id] = _describe_rejection(error)
            else:
                others = {one.id: AnsweredCall(text=_NOT_RUN_FINISHED, is_error=True) for one in message.tool_calls}
                return ReplyOutcome(finish, answered=others | {part.id: AnsweredCall(text=_ACCEPTED_TEXT)})
        if problems:
            not_run = dict.fromkeys((part.id for part in message.tool_calls if self._is_forced), _NOT_RUN_FORCED)
            return self._reject_reply(message, next(iter(problems.values())), not_run | problems)
        if self._is_forced:
            results = dict.fromkeys((part.id for part in message.tool_calls), _NOT_RUN_FORCED)
            return self._reject_reply(message, f"it called other tools, not {FINISH_TOOL}", results)
        return ReplyOutcome()

    async def _read_xml_reply(self, message: Message) -> ReplyOutcome:
        """Read a reply without tool calls, whose text may have the answer as XML."""
        arguments = self._agent.output_type.read_xml(message.text)
        if arguments is None:
            if not self._is_forced:
                return ReplyOutcome()
            return self._reject_reply(message, f"your reply has no call of {FINISH_TOOL}", {})
        try:
            return ReplyOutcome(await self._accept_arguments(arguments))
        except (OutputError, ModelRetry) as error:
            return self._reject_reply(message, _describe_rejection(error), {})

    async def _accept_finish_call(self, part: ToolCallPart) -> FinalAnswer:
        if part.malformed is not None:
            raise OutputError(build_malformed_arguments_text(part))
        return await self._accept_arguments(part.arguments)

    async def _accept_arguments(self, arguments: Mapping[str, Any]) -> FinalAnswer:
        """Build the answer of these arguments. Raises ``OutputError`` and ``ModelRetry`` with the text for the
        model."""
        kind = self._agent.output_type
        value = await self._run_output_type(kind.read_arguments, arguments)
        value = await self._run_validators(value)
        finish: FinalAnswer = await self._run_output_type(kind.build_finish, value)
        return finish

    async def _run_output_type(self, fn: Callable[[Any], Any], value: Any) -> Any:
        """Call ``fn`` of the output type; on the author's side, if it runs the author's code."""
        if not self._agent.output_type.runs_code:
            return fn(value)
        return await self._author.run(f"validators of the output of agent {self._agent.name}", fn, value)

    async def _run_validators(self, value: Any) -> Any:
        """Run the agent's validators on ``value`` in order; return the value that they leave."""
        for validator in self._agent.output_validators:
            changed = await self._run_validator(validator, value)
            if changed is None or changed is value:
                continue
            try:
                value = await self._run_output_type(self._agent.output_type.validate_value, changed)
            except OutputError as error:
                why = f"the output validator {validator.name} returned a value that is not of the output type: {error}"
                raise _AuthorCodeError(HookError(f"agent {self._agent.name!r}: {why}")) from error
        return value

    async def _run_validator(self, validator: OutputValidator, value: Any) -> Any:
        name = f"the output validator {validator.name} of agent {self._agent.name!r}"
        try:
            return await self._author.run(
                name, validator.fn, *validator.build_arguments(value, self._ctx), timeout=VALIDATOR_TIMEOUT
            )
        except ModelRetry:
            raise
        except AbortError as error:
            raise _AuthorCodeError(error) from error
        except PerdureError as error:
            if error.retryable:
                raise
            raise _AuthorCodeError(HookError(f"{name} failed: {type(error).__name__}: {error}")) from error
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, OverdueError):
                why = f"it did not return within {VALIDATOR_TIMEOUT:g} s"
            raise _AuthorCodeError(HookError(f"{name} failed: {why}")) from error

    def _reject_reply(self, message: Message, why: str, calls: Mapping[str, str]) -> ReplyOutcome:
        """Build the outcome of a rejected reply: the model tries again, or the run fails. ``calls``: result texts for
        the model, by call id."""
        count = (self._task.rejected or 0) + 1
        if count <= self._agent.parse_retries:
            results = {call_id: RefusedCall(text=text) for call_id, text in calls.items()}
            again = f"call {FINISH_TOOL} again" if self._agent.finish == "tool" else "give another one"
            return ReplyOutcome(rejected=True, reminder=None if calls else f"{why}\nPlease {again}.", answered=results)
        finish_calls = [part for part in message.tool_calls if part.id in calls]
        answer = (
            json.dumps(finish_calls[0].arguments, ensure_ascii=False)
            if finish_calls and not finish_calls[0].malformed
            else ""
        )
        answer = answer or (finish_calls[0].malformed if finish_calls else None) or message.text
        times = "1 attempt" if count == 1 else f"{count} attempts"
        text = (
            f"agent {self._agent.name!r} gave no valid output in {times}: {_truncate_error(why)}\n"
            f"The model said: {_truncate_error(answer)}"
        )
        ended = {
            part.id: AnsweredCall(text=calls.get(part.id, _NOT_RUN_FAILED), is_error=True)
            for part in message.tool_calls
        }
        return ReplyOutcome(
            rejected=True, failed=TurnFailure(type=ParseError.__name__, message=clean_text(text)), answered=ended
        )


def build_failed_outcome(message: Message, error: PerdureError) -> ReplyOutcome:
    """Build the outcome of a run that fails with ``error``; the reply is recorded, and none of its calls runs."""
    results = {part.id: AnsweredCall(text=_NOT_RUN_FAILED, is_error=True) for part in message.tool_calls}
    return ReplyOutcome(
        failed=TurnFailure(type=type(error).__name__, message=_truncate_error(clean_text(str(error)))),
        answered=results,
    )


def _describe_rejection(error: OutputError | ModelRetry) -> str:
    if isinstance(error, ModelRetry):
        return truncate_error_text(f"The answer was not accepted: {error}")
    return truncate_error_text(str(error))


def _truncate_error(text: str) -> str:
    return text if len(text) <= _ERROR_CHARS else text[:_ERROR_CHARS] + "…"
