"""Checks of an agent's definition, field by field. Each error names the agent, the field and the way out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from typing_extensions import TypedDict

from ..errors import DefinitionError
from ..hooks import Hook
from ..hooks.hook import evaluate_signature
from ..providers.registry import check_settings, check_stream, parse_model
from ..tools import Rule, RunContext, Tool
from ..tools.context_type import (
    describe_types,
    find_context_mismatch,
    list_positional_parameters,
    may_be,
    resolve_parameter_hint,
    takes_context,
)
from ..types.interface import FinishProtocol, OnLimit, Versioning
from ..types.limits import DEFAULT_ITERATIONS, Limits, check_whole_number
from ..types.messages import NAME_PATTERN

if TYPE_CHECKING:
    from ..ports.model import ModelRef, ToolSpec
    from ..ports.toolset import Toolset
    from ..types.compaction import Compaction, CompactionSettings


logger = logging.getLogger("perdure.worker")

DEFAULT_PARSE_RETRIES = 2

Instruction = str | Callable[[RunContext[Any]], Any]
"""A part of a system prompt: text, or a sync or async function that returns it or None."""


class AgentOptions(TypedDict, total=False):
    """The arguments of ``Agent`` that have nothing to do with its types, for the overloads of these."""

    description: str
    input: Any
    toolsets: Sequence[Toolset]
    settings: Mapping[str, Any] | None
    provider_options: Mapping[str, Any] | None
    finish: FinishProtocol | None
    parse_retries: int
    max_iterations: int | None
    on_limit: OnLimit
    limits: Limits | None
    compaction: Compaction | Sequence[Compaction] | None
    approvals: Sequence[Rule]
    versioning: Versioning
    client_tools: bool
    caller_overrides: Sequence[str]
    caller_claims: Sequence[str]
    internal: bool


def validate_agent_name(name: Any) -> str:
    """Return the name of an agent. Raises ``DefinitionError``, as does every function of this module."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        hint = "Give it a short name; the description may say the rest."
        raise DefinitionError(f"the agent name {name!r} does not match {NAME_PATTERN.pattern}", hint=hint)
    return name


def validate_models(name: str, model: Any) -> tuple[ModelRef, ...]:
    """Return the chain of models; each is ``"<provider>:<model>"`` or a ``Provider`` object."""
    if not isinstance(model, list | tuple):
        return (_validate_model(name, model),)
    if not model:
        hint = "Name one at least: model=['anthropic:claude-sonnet-4-5', 'openai:gpt-5']."
        raise DefinitionError(f"agent {name!r}: the list of models is empty", hint=hint)
    chain = tuple(_validate_model(name, listed) for listed in model)
    for number, listed in enumerate(chain):
        if listed in chain[:number]:
            hint = "Name each once: a model that failed is called again with the next attempt."
            raise DefinitionError(f"agent {name!r}: the chain of models has {listed} twice", hint=hint)
    return chain


def _validate_model(name: str, model: Any) -> ModelRef:
    from ..ports.model import ModelRef

    if isinstance(model, str):
        return ModelRef(*parse_model(model))
    if isinstance(model, type) or not callable(getattr(model, "stream", None)):
        raise DefinitionError(
            f"agent {name!r}: the model must be '<provider>:<model>' or a Provider with a stream method, not {model!r}",
            hint=f"Pass an instance: {model.__name__}(…)."
            if isinstance(model, type)
            else "For instance 'openai:gpt-5'.",
        )
    check_stream(f"agent {name!r}: model {type(model).__name__}", model)
    return ModelRef(type(model).__name__, "custom", model)


def validate_agent_limits(name: str, limits: Any) -> Limits:
    """Return ``limits``; None means no limit."""
    if limits is not None and not isinstance(limits, Limits):
        hint = 'For instance limits=Limits(cost_usd=2.0, wall_time="1h").'
        raise DefinitionError(f"agent {name!r}: limits must be Limits, not {limits!r:.100}", hint=hint)
    return limits or Limits()


def build_missing_price_error(agent: str, model: str) -> DefinitionError:
    """Build the error for an agent with a cost limit and a ``model`` whose calls would count as free."""
    return DefinitionError(
        f"agent {agent!r} has a limit of cost_usd, and no price of {model!r} is known: the limit would not hold",
        hint='Register it: register_price("<provider>:<model>", input=…, output=…), in dollars per million tokens. '
        "Or limit tokens.",
    )


def build_missing_usage_error(agent: str, model: str, limit: str) -> DefinitionError:
    """Build the error for an agent with a limit on tokens and a ``model`` whose replies have no token counts."""
    return DefinitionError(
        f"agent {agent!r} has a limit of {limit}, and {model!r} reports no usage: the limit would not hold",
        hint="Have its provider give Completed(…, usage=Usage(…)), or its endpoint report usage of streamed replies. "
        "Or limit iterations, wall_time or tool_calls.",
    )


def check_prices(
    name: str, chain: Sequence[ModelRef], limits: Limits, compaction: CompactionSettings | None = None
) -> None:
    """Raise ``DefinitionError`` for a cost limit with a model whose calls would count as free.

    Models of providers outside perdure, and overrides, are checked at the first reply. ``compaction`` may name a model
    for summaries.
    """
    if limits.limits_cost:
        from ..providers.pricing import has_price

        summary_model = compaction.summarise.model if compaction is not None and compaction.summarise else None
        for model in (*chain, *(() if summary_model is None else validate_models(name, summary_model))):
            if model.own is None and not has_price(model.provider, model.name):
                raise build_missing_price_error(name, str(model))


def validate_compaction(name: str, compaction: Any) -> CompactionSettings | None:
    """Return the settings of one ``Compaction`` or a list of them, by kind; None if there is none."""
    if compaction is None:
        return None
    from ..types.compaction import build_compaction_settings

    settings = build_compaction_settings(name, compaction)
    if settings is not None and settings.summarise is not None and settings.summarise.model is not None:
        validate_models(name, settings.summarise.model)
    return settings


def warn_of_low_threshold(
    name: str, compaction: CompactionSettings | None, instructions: Iterable[Any], specs: Iterable[ToolSpec]
) -> None:
    """Log a warning if instructions and tools alone use the tokens at which a summary is due: every call has come to
    that, and a summary follows whenever it saves a quarter. Instructions that a function gives are not known here."""
    if compaction is None or compaction.summarise is None:
        return
    from ..types.compaction import BYTES_PER_TOKEN

    texts = [
        *(part for part in instructions if isinstance(part, str)),
        *(f"{spec.name}{spec.description}{json.dumps(spec.parameters, ensure_ascii=False)}" for spec in specs),
    ]
    byte_count = sum(len(text.encode(errors="replace")) for text in texts)
    tokens, at = byte_count // BYTES_PER_TOKEN, compaction.summarise.at
    if tokens >= at:
        logger.warning(
            "agent %r: instructions and tools have about %s tokens, and Compaction.summarise(at=%s) is for the whole "
            "call: summaries come as often as they save a quarter of it. Raise at.",
            name,
            f"{tokens:,}",
            f"{at:,}",
        )


def validate_instructions(name: str, instructions: Any) -> tuple[Instruction, ...]:
    """Return the parts of the instructions: text, a function, a list of these, or none for None and empty text."""
    if instructions is None or instructions == "":
        return ()
    listed = instructions if isinstance(instructions, list | tuple) else [instructions]
    return tuple(validate_instruction(name, part) for part in listed)


def validate_instruction(name: str, part: Any) -> Instruction:
    """Return one part of the instructions: text, or a function of a ``RunContext``."""
    if not (isinstance(part, str) or callable(part)):
        raise DefinitionError(
            f"agent {name!r}: instructions must be text or a function of RunContext, or a list, not {part!r:.100}",
            hint='For instance instructions=["You help customers.", say_date].',
        )
    if callable(part):
        function = getattr(part, "__name__", type(part).__name__)
        signature = evaluate_signature(f"agent {name!r}: the instructions {function!r}", part)
        try:
            if signature is not None:
                signature.bind(None)
        except TypeError as error:
            raise DefinitionError(
                f"agent {name!r}: the instructions {function!r} cannot be called with a RunContext: {error}",
                hint="They take one argument: def prompt(ctx: RunContext) -> str: …",
            ) from None
    valid: Instruction = part
    return valid


def build_instruction_arguments(part: Callable[..., Any], ctx: RunContext[Any]) -> tuple[RunContext[Any], ...]:
    """Return the arguments that a function of the instructions is called with: ``ctx``, or none where its first
    parameter is for something else."""
    signature = evaluate_signature("the instructions", part)
    first = next(iter(signature.parameters.values()), None) if signature is not None else None
    return (ctx,) if first is None or takes_context(part, first) else ()


def validate_toolsets(name: str, toolsets: Any) -> tuple[Toolset, ...]:
    """Return the toolsets; each must have a unique name."""
    from ..ports.toolset import ON_CHANGE_VALUES, Toolset

    listed = validate_list(name, "toolsets", toolsets, "[Artifacts()]")
    names: set[str] = set()
    for toolset in listed:
        if not isinstance(toolset, Toolset):
            is_class = isinstance(toolset, type)
            raise DefinitionError(
                f"agent {name!r}: a toolset is an instance of perdure.Toolset, not {toolset!r:.100}",
                hint=f"Pass an instance: {toolset.__name__}(…)." if is_class else "Tools go into tools=[…].",
            )
        where = f"agent {name!r}: toolset {type(toolset).__name__}"
        if type(toolset).list is Toolset.list:
            raise DefinitionError(f"{where} has no method `list`", hint="It returns the tools: see Toolset.")
        if not isinstance(toolset.name, str) or not NAME_PATTERN.fullmatch(toolset.name):
            why = f"the name {toolset.name!r} does not match {NAME_PATTERN.pattern}"
            raise DefinitionError(f"{where}: {why}", hint='For instance name="crm".')
        if toolset.name in names:
            raise DefinitionError(
                f"agent {name!r}: two toolsets are called {toolset.name!r}", hint="Rename one of them."
            )
        if toolset.on_change not in ON_CHANGE_VALUES:
            why = f"on_change is {toolset.on_change!r}, it can be {', '.join(ON_CHANGE_VALUES)}"
            raise DefinitionError(f"{where}: {why}", hint="Leave it out.")
        if not isinstance(toolset.timeout, int | float) or not toolset.timeout > 0:
            raise DefinitionError(f"{where}: timeout={toolset.timeout!r} is not a positive number of seconds")
        names.add(toolset.name)
    return tuple(listed)


def validate_list(name: str, field: str, value: Any, example: str) -> list[Any]:
    """Return the items of a list, tuple or other iterable that is not text or a dictionary."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise DefinitionError(
            f"agent {name!r}: {field} must be a list, not {value!r:.100}", hint=f"For instance {field}={example}."
        )
    return list(value)


def validate_rules(name: str, rules: Any) -> tuple[Rule, ...]:
    """Return the ``approvals``: rules, in the order in which they are tried."""
    listed = validate_list(name, "approvals", rules, '[allow("read_*"), ask("*")]')
    for rule in listed:
        if not isinstance(rule, Rule):
            hint = "Rules are made by allow(), ask() and deny()."
            raise DefinitionError(f"agent {name!r}: {rule!r:.100} is not a rule", hint=hint)
    return tuple(listed)


def validate_mapping(name: str, field: str, value: Any) -> dict[str, Any]:
    """Return a dictionary with string keys; empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        hint = f'For instance {field}={{"temperature": 0.2}}.'
        raise DefinitionError(f"agent {name!r}: {field} must be a dictionary by names, not {value!r:.100}", hint=hint)
    return dict(value)


def validate_choice(name: str, field: str, value: Any, allowed: tuple[str, ...], default: str) -> Any:
    """Return one of ``allowed``."""
    if value not in allowed:
        problem = f"agent {name!r}: {field} is {value!r:.100}, it can be {', '.join(allowed)}"
        raise DefinitionError(problem, hint=f"Leave it out for {default}.")
    return value


def validate_on_limit(name: str, value: Any) -> OnLimit:
    """Return what the agent does at a limit."""
    on_limit: OnLimit = validate_choice(name, "on_limit", value, get_args(OnLimit), "'finish'")
    return on_limit


def validate_versioning(name: str, value: Any) -> Versioning:
    """Return whether turns of the agent stay on the version of the workers that they began on."""
    versioning: Versioning = validate_choice(name, "versioning", value, get_args(Versioning), "'auto_upgrade'")
    return versioning


def validate_client_tools(name: str, value: Any) -> bool:
    """Return whether clients may declare tools of their own to the agent."""
    if not isinstance(value, bool):
        hint = "Clients declare the tools themselves: client.send(…, client_tools=[…])."
        raise DefinitionError(f"agent {name!r}: client_tools is True or False, not {value!r:.100}", hint=hint)
    return value


def validate_subagents(name: str, subagents: Any, kind: type) -> list[Any]:
    """Return the subagents: agents (of the class ``kind``), or names of agents."""
    listed = validate_list(name, "subagents", subagents, "[researcher]")
    for subagent in listed:
        if not isinstance(subagent, kind | str):
            problem = f"agent {name!r}: a subagent is an Agent or the name of one, not {subagent!r:.100}"
            raise DefinitionError(problem, hint="A function goes into tools=[…].")
    return listed


def resolve_max_iterations(name: str, value: Any, limits: Limits) -> int:
    """Return the model calls allowed per turn, a whole number of at least 1: ``max_iterations`` or the turn's limit."""
    of_turn = limits.turn.iterations if limits.turn is not None else None
    if value is None:
        return of_turn or DEFAULT_ITERATIONS
    if of_turn is not None:
        problem = f"agent {name!r}: max_iterations and limits.turn.iterations are the same limit"
        raise DefinitionError(problem, hint=f"Give one of them: max_iterations={value!r:.20}.")
    hint = f"1 is a single model call; leave it out for {DEFAULT_ITERATIONS}."
    check_whole_number(f"agent {name!r}", "max_iterations", value, hint=hint)
    return int(value)


def validate_parse_retries(name: str, value: Any) -> int:
    """Return how often the model may correct an answer that does not fit the type."""
    check_whole_number(f"agent {name!r}", "parse_retries", value, least=0, hint="For instance parse_retries=2.")
    return int(value)


def resolve_finish_protocol(name: str, is_text: bool, finish: Any) -> FinishProtocol:
    """Return the finish protocol: ``finish``, or the default for the output. Only ``"tool"`` can carry other output
    than text."""
    if finish is None:
        return "text" if is_text else "tool"
    default = "the one that fits the output"
    protocol: FinishProtocol = validate_choice(name, "finish", finish, get_args(FinishProtocol), default)
    if finish != "tool" and not is_text:
        hint = "Leave finish out: an output of a type comes by finish='tool'."
        raise DefinitionError(f"agent {name!r}: finish={finish!r} gives text, and the output is of a type", hint=hint)
    return protocol


def check_model_settings(
    chain: Sequence[ModelRef], settings: Mapping[str, Any], provider_options: Mapping[str, Any]
) -> None:
    """Check the settings against every model of the chain, since any of them may be called.

    Raises ``SettingsError`` or ``DefinitionError``.
    """
    for model in chain:
        try:
            if model.own is None:
                check_settings(model.provider, settings, provider_options)
            elif (check := getattr(model.own, "check_settings", None)) is not None:
                check(settings, provider_options)
        except DefinitionError as error:
            if len(chain) == 1:
                raise
            raise type(error)(f"model {str(model)!r}: {error.message}", hint=error.hint) from None


# ---
# The types of the author's functions: one that takes another context or output would fail in the middle of a run.


def check_function_types(
    name: str, context: Any, output: Any, *, tools: Iterable[Tool], hooks: Iterable[Hook], instructions: Iterable[Any]
) -> None:
    """Compare the annotations of an agent's functions with its types."""
    for part in instructions:
        if callable(part):
            _check_context_parameter(name, context, "the function of its instructions", part, 0)
    for tool in tools:
        owner = f"the tool {tool.name!r} ({tool.where})"
        _check_context(name, context, owner, tool.context_hint)
        if callable(tool.needs_approval):
            _check_context_parameter(name, context, f"needs_approval of {owner}", tool.needs_approval, 1)
        for hook in tool.hooks:
            _check_hook_types(name, context, output, hook)
    for hook in hooks:
        _check_hook_types(name, context, output, hook)


def check_validator_types(name: str, context: Any, output: Any, validator: Any) -> None:
    """Compare the annotations of the function of an output validator with the agent's types."""
    owner = f"the output validator {getattr(validator, '__name__', type(validator).__name__)!r}"
    if parameters := list_positional_parameters(validator):
        _check_output(name, output, owner, resolve_parameter_hint(validator, parameters[0]))
    _check_context_parameter(name, context, owner, validator, 1)


def _check_hook_types(name: str, context: Any, output: Any, hook: Hook) -> None:
    owner = f"the hook {hook.name!r} ({hook.event})"
    if "ctx" in hook.takes:
        _check_context(name, context, owner, resolve_parameter_hint(hook.fn, "ctx"))
    if "output" in hook.takes:
        _check_output(name, output, owner, resolve_parameter_hint(hook.fn, "output"))


def _check_context_parameter(name: str, context: Any, owner: str, fn: Any, index: int) -> None:
    if len(parameters := list_positional_parameters(fn)) > index:
        _check_context(name, context, owner, resolve_parameter_hint(fn, parameters[index]))


def _check_context(name: str, context: Any, owner: str, hint: Any) -> None:
    if (mismatch := find_context_mismatch(hint, context)) is None:
        return
    generic, wanted_type = mismatch
    given, wanted = describe_types(context, wanted_type)
    if context is None:
        raise DefinitionError(
            f"agent {name!r}: {owner} takes {generic}[{wanted}], and the agent declares no context: it is a dictionary",
            hint=f"Declare it, Agent({name!r}, …, context={wanted}), or write {generic} alone, which takes any.",
        )
    way_out = "" if wanted == "None" else f", or give the agent context={wanted}"
    raise DefinitionError(
        f"agent {name!r}: {owner} takes {generic}[{wanted}], and the agent's context is {given}",
        hint=f"Write {generic}[{given}] or {generic} alone, which takes any{way_out}.",
    )


def _check_output(name: str, output: Any, owner: str, hint: Any) -> None:
    if not may_be(output, hint):
        given, wanted = describe_types(output, hint)
        raise DefinitionError(
            f"agent {name!r}: {owner} takes an output of type {wanted}, and the agent's output is {given}",
            hint=f"Write output: {given}, or give the agent output={wanted}.",
        )
