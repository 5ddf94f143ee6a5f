"""The agents that workers have recorded, and the page of one: what its tools take, what a person must approve, limits,
versions, and who serves it. All of it is read from the stored definitions, without the agents' code.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from starlette.responses import Response

from ..client.pages import gather_bounded
from ..client.queues import QueueStatus, Silence, ask, count_open_runs, describe_queue, list_open_executions
from ..client.visibility import quote_literal
from ..ports.store import AgentRow
from ..types.interface import AGENT_ATTRIBUTE
from ..types.limits import parse_seconds
from ..web.auth import Caller, Resource
from ..web.lists import read_visible_agents
from ..web.operations import Call
from ..web.problems import NotFoundError
from ..web.records import UsageQuery, UsageTotals, sum_usage
from .forms import resolve_reference
from .inbox import count_pending
from .pages import Page, PageRoute
from .texts import format_cost, format_count, format_duration, format_json

ROWS = 50
"""Agents of a page."""
_WEEK_AGENTS = 400
VERSIONS = 20
"""Versions that the page of an agent names."""
_MAX_TOOLS = 200
_MAX_FIELDS, _MAX_FIELD_DEPTH = 80, 3
"""Most fields of a schema that are in its table, and how deep objects in objects are."""
_RUNS_LOOKED_AT, _MAX_QUEUES = 50, 3
"""Open runs of an agent whose task queues are looked at, and most queues of its page."""
_DIFF_LINES = 3_000
"""Lines of a part of a definition beyond which it is not compared."""
_MIN_HASH = 6


# ---
# A definition, as a page shows it. What workers record is plain JSON, which other versions of perdure may have written.


@dataclass(frozen=True)
class SchemaField:
    """A field of a JSON Schema, as a row of a table."""

    name: str
    """With those of the objects that it is in: ``address.street``."""
    kind: str
    is_required: bool
    default: str = ""
    """JSON; "" without one."""
    text: str = ""


@dataclass(frozen=True)
class Schema:
    """A JSON Schema, as a table and as it is."""

    plain: Mapping[str, Any]
    fields: Sequence[SchemaField]


@dataclass(frozen=True)
class ToolView:
    """A tool of an agent."""

    name: str
    text: str
    schema: Schema | None
    approval: str
    """In a sentence; "" for a tool whose calls are not approved."""
    facts: Sequence[tuple[str, str]]
    hooks: Sequence[str]
    kind: str = ""
    """subagent, remote or client; "" for one that workers run."""
    rule: str = ""
    """What the agent's rules make of all its calls, or ask for some of them: allow, ask or deny; "" where its own terms
    decide."""

    @property
    def first_line(self) -> str:
        """The first line of its description."""
        return self.text.strip().partition("\n")[0]

    @property
    def asks(self) -> bool:
        """Whether a person may be asked about its calls."""
        return self.rule == "ask" or (bool(self.approval) and self.rule == "")


@dataclass(frozen=True)
class RuleView:
    """A rule of an agent's approvals."""

    action: str
    tool: str
    """A glob."""
    arguments: Sequence[tuple[str, str]]
    """Names, and what they are, as JSON."""
    terms: str
    """In a sentence; "" for a rule that does not ask, or asks on the tool's own terms."""

    @property
    def verb(self) -> str:
        """What it does, in words."""
        return {"allow": "Allow", "ask": "Ask a person about", "deny": "Deny"}.get(self.action, self.action)


@dataclass(frozen=True)
class AgentView:
    """An agent by one of its definitions."""

    name: str
    text: str = ""
    models: Sequence[str] = ()
    instructions: Sequence[tuple[str, str]] = ()
    """Kind, ``text`` or ``function``, and the text or the function's name."""
    tools: Sequence[ToolView] = ()
    rules: Sequence[RuleView] = ()
    """In their order: the first that fits decides."""
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()
    limits: Sequence[tuple[str, str]] = ()
    hooks: Sequence[str] = ()
    left_out: Sequence[str] = ()
    """What was too large to be recorded."""

    @property
    def asking(self) -> int:
        """Number of tools about whose calls a person may be asked."""
        return sum(tool.asks for tool in self.tools)


def read_definition(row: AgentRow) -> dict[str, Any]:
    """Return a recorded definition; empty for one that cannot be read."""
    try:
        definition = json.loads(row.body)
    except (ValueError, RecursionError):
        return {}
    return definition if isinstance(definition, dict) else {}


def build_agent_view(name: str, definition: Mapping[str, Any]) -> AgentView:
    """Build what a page shows of a definition."""
    tools = [item for item in _list(definition.get("tools")) if isinstance(item, Mapping)][:_MAX_TOOLS]
    rules = [_build_rule(rule) for rule in _list(definition.get("approvals")) if isinstance(rule, Mapping)]
    schemas = {
        key: value for key in ("input", "output", "context") if isinstance(value := definition.get(key), Mapping)
    }
    return AgentView(
        name,
        _text(definition.get("description")),
        [_text(model) for model in _list(definition.get("models"))],
        [next(((kind, _text(part[kind])) for kind in ("text", "function") if kind in part), ("text", ""))
         for part in _list(definition.get("instructions")) if isinstance(part, Mapping)],
        [_build_tool(tool, rules) for tool in tools],
        rules,
        {key: build_schema(schema) for key, schema in schemas.items() if isinstance(schema, Mapping)},
        list(_list_facts(definition)),
        list(_list_limits(definition, _map(definition.get("limits")))),
        _name_hooks(definition.get("hooks")),
        [_text(part) for part in _list(definition.get("left_out"))],
    )  # fmt: skip


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else format_json(value)


def _name_hooks(hooks: Any) -> list[str]:
    return [
        f"{_text(hook.get('event'))}: {_text(hook.get('name'))}" for hook in _list(hooks) if isinstance(hook, Mapping)
    ]


def _list_facts(definition: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    finish = {"text": "a reply without calls", "tag": "an answer in <finish>", "tool": "a call of __finish__"}
    ends = {"finish": "the model is asked for its answer", "return": "the last text is the answer"}
    ends |= {"error": "the run fails", "pause": "the run pauses until the limit is raised"}
    if "finish" in definition:
        yield "Ends with", finish.get(_text(definition["finish"]), _text(definition["finish"]))
    if "on_limit" in definition:
        yield "At a limit", ends.get(_text(definition["on_limit"]), _text(definition["on_limit"]))
    if definition.get("versioning") == "pinned":
        yield "Deploys", "a turn stays on the version it began with"
    names = {
        "subagents": "Subagents",
        "toolsets": "Toolsets",
        "output_validators": "Output checks",
        "settings": "Settings",
        "provider_options": "Provider options",
    }
    for key, label in names.items():
        if values := _list(definition.get(key)):
            yield label, ", ".join(map(_text, values))
    if definition.get("client_tools"):
        yield "Client tools", "taken from clients"


_LIMIT_NAMES = {
    "iterations": "Iterations",
    "tokens": "Tokens",
    "cost_usd": "Cost",
    "wall_time": "Time at work",
    "tool_calls": "Tool calls",
    "attempts": "Attempts of a model call",
    "call_timeout": "Time of a model call",
    "retry_wait": "Longest wait to retry",
}


def _list_limits(definition: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "max_iterations" in definition:
        yield "Iterations per turn", _format_limit("iterations", definition["max_iterations"])
    for scope, values in (("run", limits), ("turn", _map(limits.get("turn")))):
        for name, value in values.items():
            if name != "turn" and value is not None:
                label = _LIMIT_NAMES.get(name, name)
                is_of_call = name in ("attempts", "call_timeout", "retry_wait")
                yield (label if is_of_call else f"{label} per {scope}"), _format_limit(name, value)


def _format_limit(name: str, value: Any) -> str:
    if name in ("wall_time", "call_timeout", "retry_wait"):
        return format_terms_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _text(value)
    return format_cost(value) if name == "cost_usd" else format_count(value)


def format_terms_duration(value: Any) -> str:
    """Return a duration of a definition, ``"7d"`` or a number of seconds, as text."""
    try:
        return format_duration(parse_seconds(value))
    except (ValueError, TypeError, OverflowError):
        return _text(value)


# ---
# Tools and rules.


_KINDS = (("the engine", "subagent"), ("the workers of", "remote"), ("a client", "client"))
"""How ``run_by`` begins, and what a tool is then."""


def _build_tool(tool: Mapping[str, Any], rules: Sequence[RuleView]) -> ToolView:
    parameters, run_by = tool.get("parameters"), tool.get("run_by")
    facts = []
    if agents := _list(tool.get("agents")):
        facts.append(("Starts", ", ".join(map(_text, agents))))
    if run_by is not None:
        facts.append(("Run by", _text(run_by)))
    if tool.get("task_queue") is not None:
        facts.append(("Task queue", _text(tool["task_queue"])))
    if tool.get("timeout") is not None:
        facts.append(("Timeout", format_terms_duration(tool["timeout"])))
    if tool.get("retries"):
        facts.append(("Retries", _text(tool["retries"])))
    if tool.get("idempotent"):
        facts.append(("If its worker is lost", "run again: it is idempotent"))
    if tool.get("inline"):
        facts.append(("Runs", "inline, within the model's step"))
    return ToolView(
        _text(tool.get("name")),
        _text(tool.get("description")),
        build_schema(parameters) if isinstance(parameters, Mapping) else None,
        describe_approval(tool.get("needs_approval")),
        facts,
        _name_hooks(tool.get("hooks")),
        next((kind for beginning, kind in _KINDS if _text(run_by).startswith(beginning)), ""),
        find_rule_effect(_text(tool.get("name")), rules),
    )


def describe_approval(policy: Any) -> str:
    """Return in a sentence what a tool's ``needs_approval`` asks for; "" for nothing."""
    if not policy:
        return ""
    if isinstance(policy, Mapping) and "function" in policy:
        return f"The function {_text(policy['function'])} decides for each call whether a person must approve it."
    terms = _map(policy)
    who = "A person who did not ask for it" if terms.get("separate") else "A person"
    end = "without a limit of time"
    if terms.get("expires") is not None:
        verdict = "approved" if terms.get("on_expiry") == "approve" else "denied"
        end = f"for {format_terms_duration(terms['expires'])}, and is {verdict} then"
    remind = f" It is brought to mind every {format_terms_duration(terms['remind'])}." if terms.get("remind") else ""
    return f"{who} approves each call. It waits {end}.{remind}"


def _build_rule(rule: Mapping[str, Any]) -> RuleView:
    arguments = _map(rule.get("arguments"))
    given = [(str(name), json.dumps(value, ensure_ascii=False)) for name, value in arguments.items()]
    action = _text(rule.get("action"))
    return RuleView(
        action, _text(rule.get("tool")), given, describe_approval(rule.get("terms")) if action == "ask" else ""
    )


def find_rule_effect(name: str, rules: Sequence[RuleView]) -> str:
    """Return what rules make of the calls of a tool; see :attr:`ToolView.rule`."""
    asks = False
    for rule in rules:
        if fnmatchcase(name, rule.tool):
            asks = asks or rule.action == "ask"
            if not rule.arguments:
                return "ask" if asks else rule.action
    return "ask" if asks else ""


# ---
# Schemas.


def build_schema(schema: Mapping[str, Any]) -> Schema:
    """Build the table of an object's schema; of another one a single row."""
    fields = list(islice(_list_fields(schema, schema, "", 0), _MAX_FIELDS))
    if not fields and not isinstance(schema.get("properties"), Mapping):
        fields = [SchemaField("", format_type(schema, schema), is_required=True, text=_text(schema.get("description")))]
    return Schema(schema, fields)


def _list_fields(root: Mapping[str, Any], schema: Mapping[str, Any], prefix: str, depth: int) -> Iterator[SchemaField]:
    properties, required = schema.get("properties"), _list(schema.get("required"))
    if not isinstance(properties, Mapping):
        return
    # A recorded schema has its properties by name: what is required is still in the author's order.
    names = dict.fromkeys([*(name for name in required if isinstance(name, str) and name in properties), *properties])
    for name in names:
        given = {**resolve_reference(root, properties[name]), **_map(properties[name])}
        default = json.dumps(given["default"], ensure_ascii=False)[:100] if "default" in given else ""
        kind, text = format_type(root, properties[name]), _text(given.get("description"))
        yield SchemaField(f"{prefix}{name}", kind, name in required, default, text)
        inner = _find_inner(root, given)
        if inner is not None and depth + 1 < _MAX_FIELD_DEPTH:
            suffix = "[]." if given.get("type") == "array" else "."
            yield from _list_fields(root, inner, f"{prefix}{name}{suffix}", depth + 1)


def _find_inner(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the object that a field is, may be, or is a list of; None for several, and for another type."""
    kinds = [resolve_reference(root, one) for one in _list(schema.get("anyOf"))]
    some = [one for one in kinds if one.get("type") != "null"]
    found = some[0] if len(some) == 1 else schema
    if found.get("type") == "array":
        found = resolve_reference(root, found.get("items"))
    return found if isinstance(found.get("properties"), Mapping) else None


_TYPE_NAMES = {"string": "text", "integer": "whole number", "boolean": "yes or no", "null": "none"}


def format_type(root: Mapping[str, Any], schema: Any, depth: int = 0) -> str:
    """Return the type that a schema asks for, as a reader knows it: ``list of text``, ``"S", "M" or "L"``."""
    schema = resolve_reference(root, schema)
    if depth >= _MAX_FIELD_DEPTH or not schema:
        return "anything"
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list) and options:
        shown = [json.dumps(option, ensure_ascii=False)[:60] for option in options[:12]]
        more = f", or {len(options) - 12} others" if len(options) > 12 else ""
        return f"{', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 and not more else ", ".join(shown) + more
    alternatives = next((schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)), None)
    if alternatives:
        return " or ".join(dict.fromkeys(format_type(root, one, depth + 1) for one in alternatives[:8]))
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return " or ".join(_TYPE_NAMES.get(kind, kind) for kind in kinds[:8] if isinstance(kind, str))
    if kinds == "array":
        return f"list of {format_type(root, schema.get('items'), depth + 1)}" if "items" in schema else "list"
    if kinds == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"names with {format_type(root, schema['additionalProperties'], depth + 1)}"
    given = schema.get("format")
    name = _TYPE_NAMES.get(kinds, kinds) if isinstance(kinds, str) else "anything"
    return f"{name} ({given})" if isinstance(given, str) else name


# ---
# What differs between two definitions.


@dataclass(frozen=True)
class PartChange:
    """What differs in a part of a definition."""

    name: str
    state: str
    """added, removed or changed."""
    lines: Sequence[tuple[str, str]]
    """Lines that stay (" "), go ("-") and come ("+"); "…" stands for some that are left out. None for a long part."""


def compare_definitions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[PartChange]:
    """Return the parts that differ: each tool is a part, and each other key."""
    before, after = _split_parts(old), _split_parts(new)
    changes = []
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) == after.get(name):
            continue
        state = "added" if name not in before else "removed" if name not in after else "changed"
        changes.append(PartChange(name, state, list(_compare_lines(before.get(name, []), after.get(name, [])))))
    return changes


def _split_parts(definition: Mapping[str, Any]) -> dict[str, list[str]]:
    parts = {}
    for key, value in definition.items():
        if key == "tools":
            for tool in _list(value):
                name = _text(tool.get("name")) if isinstance(tool, Mapping) else ""
                parts[f"tool {name}"] = _list_lines(tool)
        elif key == "instructions":
            texts = [part.get("text") or part.get("function") for part in _list(value) if isinstance(part, Mapping)]
            parts[key] = [line for text in texts for line in _text(text).splitlines()]
        else:
            parts[key.replace("_", " ")] = _list_lines(value)
    return parts


def _list_lines(value: Any) -> list[str]:
    return value.splitlines() or [""] if isinstance(value, str) else format_json(value).splitlines()


def _compare_lines(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, str]]:
    if max(len(before), len(after)) > _DIFF_LINES:
        yield "…", f"too long to be compared: {len(before):,} lines, and {len(after):,}"
        return
    lines = difflib.unified_diff(before, after, n=2, lineterm="")
    for number, line in enumerate(islice(lines, 2, None)):
        if not line.startswith("@@"):
            yield line[0], line[1:]
        elif number:
            yield "…", ""


# ---
# Pages.


@dataclass(frozen=True)
class AgentRowView:
    """An agent of the list."""

    agent: AgentView
    versions: int
    seen_at: str
    open_runs: int | None
    week: UsageTotals | None
    """Its model calls of the last seven days."""


async def _read_week(call: Call, agent: str | None = None) -> dict[str, UsageTotals]:
    """Return the sums of the model calls of the last seven days that the caller may see, by agent."""
    since = datetime.now(UTC) - timedelta(days=7)
    query = UsageQuery(group="agent", agent=agent, since=since.isoformat(), limit=_WEEK_AGENTS)  # type: ignore[arg-type]  # parsed by the model
    listed = await sum_usage(replace(call, query=query))
    return {totals.key: totals for totals in listed.data if totals.key is not None}


def sees_all_runs(caller: Caller) -> bool:
    """Whether the caller may see the runs of every tenant and session: figures over all runs are for such callers."""
    return caller.tenants is None and caller.sessions is None


async def show_agents(page: Page) -> Response:
    """Show the agents that workers have recorded, by name."""
    agents = await read_visible_agents(page.call)
    after = page.request.query_params.get("after", "")
    names = sorted(name for name in agents if name > after)
    shown = names[:ROWS]
    views, open_runs, weeks, count = await asyncio.gather(
        asyncio.to_thread(lambda: [build_agent_view(name, read_definition(agents[name][0])) for name in shown]),
        _count_runs(page.call, shown),
        _read_week(page.call),
        count_pending(page),
    )
    rows = []
    for view in views:
        name, known = view.name, agents[view.name]
        rows.append(AgentRowView(view, len(known), known[0].seen_at, open_runs.get(name), weeks.get(name)))
    cursor = shown[-1] if len(names) > ROWS else None
    return page.render("agents.html", rows=rows, cursor=cursor, is_first=not after, total=len(agents), count=count)


async def _count_runs(call: Call, names: Sequence[str]) -> dict[str, int]:
    """Count the open runs of agents, for a caller who may see all of them, as far as Temporal says so in time."""
    if not sees_all_runs(call.caller):
        return {}
    question = gather_bounded(lambda name: count_open_runs(call.client, _build_filter(name)), names)
    counts = await ask(question)
    pairs = [] if isinstance(counts, Silence) else zip(names, counts, strict=True)
    return {name: count for name, count in pairs if isinstance(count, int)}


def _build_filter(name: str) -> str:
    return f"{AGENT_ATTRIBUTE} = {quote_literal(name)}"


@dataclass(frozen=True)
class Served:
    """Where the open runs of an agent are, and who polls there."""

    queues: Sequence[QueueStatus] = ()
    open_runs: int | None = None
    silence: str | None = None


async def _find_served(call: Call, name: str) -> Served | None:
    """Look for the agent's open runs; None for a caller who may not see all of them."""
    if not sees_all_runs(call.caller):
        return None
    listed, count = await asyncio.gather(
        ask(list_open_executions(call.client, _RUNS_LOOKED_AT, _build_filter(name))),
        count_open_runs(call.client, _build_filter(name)),
    )
    if isinstance(listed, Silence):
        return Served(silence=listed.reason)
    names = list(dict.fromkeys(run.task_queue for run in listed))[:_MAX_QUEUES]
    queues = await gather_bounded(lambda queue: describe_queue(call.client, queue), names)
    return Served(queues, count if isinstance(count, int) else None)


async def show_agent(page: Page) -> Response:
    """Show an agent by its newest definition, or by the one that the address names; or what differs between two."""
    name, given = page.call.params["agent"], page.request.query_params
    rows = (await read_visible_agents(page.call, name)).get(name)
    if not rows:
        raise NotFoundError("there is no such agent")
    row, other = _find_version(rows, given.get("version")), given.get("against")
    if other:
        return await _show_changes(page, name, _find_version(rows, other), row)
    view, served, weeks, may_send, count = await asyncio.gather(
        asyncio.to_thread(lambda: build_agent_view(name, read_definition(row))),
        _find_served(page.call, name),
        _read_week(page.call, name),
        page.call.may("send", Resource("agent", name, agent=name)),
        count_pending(page),
    )
    return page.render(
        "agent.html",
        agent=view,
        row=row,
        newest=rows[0],
        versions=rows[:VERSIONS],
        total=len(rows),
        served=served,
        week=weeks.get(name),
        may_send=may_send,
        count=count,
    )


def _find_version(rows: Sequence[AgentRow], hash: str | None) -> AgentRow:
    if not hash:
        return rows[0]
    found = [row for row in rows if len(hash) >= _MIN_HASH and row.hash.startswith(hash)]
    if len(found) != 1:
        raise NotFoundError("there is no such definition")
    return found[0]


async def _show_changes(page: Page, name: str, old: AgentRow, new: AgentRow) -> Response:
    changes, count = await asyncio.gather(
        asyncio.to_thread(lambda: compare_definitions(read_definition(old), read_definition(new))), count_pending(page)
    )
    return page.render("agent_changes.html", name=name, old=old, new=new, changes=changes, count=count)


PAGES = (
    PageRoute("GET", "/agents", show_agents, "agents"),
    PageRoute("GET", "/agents/{agent:segment}", show_agent, "agent"),
)
