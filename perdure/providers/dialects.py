"""How servers that speak OpenAI's chat completions or Anthropic's Messages differ: one table of hosts and families.

A difference is a field of :class:`Dialect`. It is known in advance, by the server's host or the name that the author
gives (``OpenAIChat(dialect="vllm")``), or learned: a server that refuses a request says why, and ``CONCESSIONS`` has
the field that this means. The request is then sent again with that field changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from ..errors import BadRequestError, DefinitionError, ModelNotFoundError, ProviderError

ThinkingUse = Literal["returned", "demanded", "signed", "refused"]
ForcedTool = Literal["named", "required", "asked"]
DoneUse = Literal[True, False, "with_usage"]
MaxTokensName = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one server, or one family of servers, needs and does. The defaults are those of most servers."""

    name: str = "compatible"
    """Its name in ``dialect=``."""
    formats: tuple[str, ...] = ("openai", "anthropic")
    """The wire formats of the entry."""
    hosts: tuple[str, ...] = ()
    """Domains at which it is assumed; none for programs that may run anywhere."""
    max_tokens_name: MaxTokensName = "max_tokens"
    """The wire name of the setting ``max_tokens``."""
    streaming: bool = True
    """Whether replies are streamed. Some servers do not stream replies of certain models, or calls of tools: a reply
    then comes at once."""
    stream_usage: bool = True
    """Whether to send ``stream_options`` to ask for the usage. A server that sends it anyway may refuse to be asked."""
    forced_tool: ForcedTool = "named"
    """How the one tool that must be called is demanded: by its name in ``tool_choice``, by ``"required"`` there, or in
    words (``"asked"``), as models that think accept nothing else."""
    short_call_ids: bool = False
    """Whether ids of tool calls must be nine letters or digits. Other ids are sent as a digest."""
    strict_roles: bool = False
    """Whether user and assistant must take turns behind one system message. Neighbours of one role are then joined,
    later system messages are marked text of the user, and the conversation ends with a user or a result."""
    thinking: ThinkingUse = "returned"
    """What becomes of earlier thinking. ``"returned"``: it goes back to the server that gave it. ``"demanded"``:
    moreover, calls that have none get an empty one. ``"signed"``: only with a signature. ``"refused"``: none goes
    back."""
    call_signatures: bool = False
    """Whether a call that another server's model made needs a placeholder for Google's thought signature."""
    think_tags: bool = True
    """Whether ``<think>`` at the beginning of a reply begins thinking. It is kept apart from the answer, and not sent
    back unless ``thinking`` is ``"demanded"``."""
    done_ends_reply: DoneUse = False
    """Whether ``[DONE]`` ends a reply that has no ``finish_reason``, always or only behind the usage, which a proxy
    that lost the model does not have. If not, that reply counts as cut."""
    cache_marks: bool = True
    """Whether requests may have ``cache_control``."""


FIELDS = {
    "openai": (
        *("max_tokens_name", "streaming", "stream_usage", "forced_tool", "short_call_ids", "strict_roles", "thinking"),
        *("call_signatures", "think_tags", "done_ends_reply"),
    ),
    "anthropic": ("streaming", "thinking", "forced_tool", "cache_marks"),
    "openai-responses": ("streaming", "forced_tool"),
}
"""The fields that count in each format, which are parameters of its adapter (but for Responses, which learns them)."""

_OPENAI = ("openai",)
_ANTHROPIC = ("anthropic",)

DIALECTS = (
    Dialect("openai", _OPENAI, ("openai.com",), "max_completion_tokens", think_tags=False),
    Dialect(
        "azure",
        _OPENAI,
        ("openai.azure.com", "cognitiveservices.azure.com"),
        "max_completion_tokens",
        think_tags=False,
    ),
    Dialect("azure-foundry", _OPENAI, ("services.ai.azure.com", "models.ai.azure.com")),
    Dialect("azure-foundry", _ANTHROPIC, ("services.ai.azure.com",), thinking="signed"),
    Dialect("anthropic", _ANTHROPIC, ("anthropic.com",), thinking="signed"),
    Dialect("anthropic", _OPENAI, ("anthropic.com",)),
    Dialect("bedrock", _OPENAI, ("amazonaws.com", "api.aws")),
    Dialect("bedrock", _ANTHROPIC, ("amazonaws.com", "api.aws"), thinking="signed"),
    Dialect("google", _OPENAI, ("generativelanguage.googleapis.com",), call_signatures=True),
    Dialect("vertex", _OPENAI, ("aiplatform.googleapis.com",), call_signatures=True),
    Dialect("vertex", _ANTHROPIC, ("aiplatform.googleapis.com",), thinking="signed"),
    Dialect("openrouter", hosts=("openrouter.ai",)),
    Dialect("vercel", hosts=("ai-gateway.vercel.sh",)),
    Dialect("groq", _OPENAI, ("groq.com",)),
    Dialect("cerebras", _OPENAI, ("cerebras.ai",)),
    Dialect("sambanova", _OPENAI, ("sambanova.ai",)),
    Dialect("together", _OPENAI, ("together.xyz", "together.ai")),
    Dialect("fireworks", hosts=("fireworks.ai",)),
    Dialect("deepinfra", _OPENAI, ("deepinfra.com",)),
    Dialect("huggingface", _OPENAI, ("huggingface.co",)),
    Dialect("github", _OPENAI, ("models.github.ai", "githubcopilot.com")),
    Dialect("nvidia", _OPENAI, ("nvidia.com",)),
    Dialect("databricks", _OPENAI, ("databricks.com", "azuredatabricks.net"), stream_usage=False),
    Dialect("perplexity", _OPENAI, ("perplexity.ai",), strict_roles=True),
    Dialect(
        "mistral",
        _OPENAI,
        ("mistral.ai",),
        stream_usage=False,
        short_call_ids=True,
        strict_roles=True,
        thinking="refused",
    ),
    Dialect("deepseek", hosts=("deepseek.com",), forced_tool="asked", thinking="demanded"),
    Dialect("kimi", hosts=("moonshot.ai", "moonshot.cn", "kimi.com"), forced_tool="asked", thinking="demanded"),
    Dialect("minimax", hosts=("minimax.io", "minimaxi.com", "minimax.chat"), thinking="demanded"),
    Dialect("zai", hosts=("z.ai", "bigmodel.cn"), forced_tool="asked", thinking="demanded"),
    Dialect("qwen", _OPENAI, ("aliyuncs.com",), forced_tool="asked"),
    Dialect("qwen", _ANTHROPIC, ("aliyuncs.com",), forced_tool="asked", thinking="demanded"),
    Dialect("xai", hosts=("x.ai",)),
    Dialect("vllm", _OPENAI, strict_roles=True),
    Dialect("sglang", _OPENAI, strict_roles=True),
    Dialect("llama.cpp", _OPENAI, forced_tool="required", strict_roles=True),
    Dialect("ollama", _OPENAI, forced_tool="asked"),
    Dialect("lmstudio", _OPENAI, forced_tool="required", strict_roles=True),
    Dialect("vllm", _ANTHROPIC),
    Dialect("llama.cpp", _ANTHROPIC),
    Dialect("ollama", _ANTHROPIC, forced_tool="asked"),
    Dialect("lmstudio", _ANTHROPIC),
    Dialect("litellm"),
    Dialect("compatible", _OPENAI, done_ends_reply="with_usage"),
    Dialect("compatible", (*_ANTHROPIC, "openai-responses")),
)
"""An entry for each family and format; ``compatible`` is every other server.

Sources: public issue threads and public code, not the vendors' references: stream_options
(openai/openai-agents-python#442, anomalyco/opencode#4698), forced tools (XiaomiMiMo/MiMo-Code#2068,
cloudwego/eino#994), ids (langchain-ai/langchain#24668), thinking that must come back (earendil-works/pi#3636,
NousResearch/hermes-agent#16748), replies without a finish reason (earendil-works/pi#8460).
"""


def list_dialects(format: str) -> tuple[Dialect, ...]:
    """The entries of the table for a wire format."""
    return tuple(dialect for dialect in DIALECTS if format in dialect.formats)


def find_dialect(format: str, host: str) -> Dialect:
    """The dialect of the server at ``host``; ``compatible`` for one that the table does not have."""
    for dialect in list_dialects(format):
        if any(host == domain or host.endswith(f".{domain}") for domain in dialect.hosts):
            return dialect
    return get_dialect(format, "compatible")


def get_dialect(format: str, name: str) -> Dialect:
    """The dialect of that name. Raises ``DefinitionError``."""
    known = {dialect.name: dialect for dialect in list_dialects(format)}
    if name not in known:
        hint = f"It must be one of {', '.join(sorted(known))}, or a Dialect; single fields are parameters, too."
        raise DefinitionError(f"dialect: {name!r:.100} is unknown for the format {format!r}.", hint=hint)
    return known[name]


def check_fields(format: str, adapter_name: str, dialect: object, given: Mapping[str, object]) -> dict[str, Any]:
    """``given`` without fields that are None. Raises ``DefinitionError`` for a value that a field cannot have."""
    if isinstance(dialect, str):
        get_dialect(format, dialect)
    elif dialect is not None and not isinstance(dialect, Dialect):
        raise DefinitionError(f"{adapter_name}: dialect must be a name or a Dialect, not {dialect!r:.100}.")
    kinds = get_type_hints(Dialect)
    checked = {name: value for name, value in given.items() if value is not None}
    for name, value in checked.items():
        allowed = (True, False) if kinds[name] is bool else get_args(kinds[name])
        if not any(type(value) is type(each) and value == each for each in allowed):
            shown = ", ".join(map(repr, allowed))
            raise DefinitionError(f"{adapter_name}: {name} must be one of {shown}, not {value!r:.100}.")
    return checked


# ---
# What a refusal says of the dialect.


@dataclass(frozen=True, slots=True)
class Concession:
    """A field that changes when a server refuses a request in these words."""

    field: str
    value: object
    text: re.Pattern[str]
    before: tuple[object, ...] = ()
    """Values of the field that may be changed; empty for any other than ``value``."""
    remembered: bool = True
    """Whether it is true of the model, and not only of this conversation."""


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


_REFUSED = (
    r"(?:not (?:supported|permitted|allowed|recogni[sz]ed|valid|available|enabled|accepted|compatible)|unsupported"
    r"|unknown|unrecogni[sz]ed|unexpected|extra (?:inputs|fields|properties)|extra_forbidden|invalid(?!_)|incompatible"
    r"|does(?: not|n't) support|only|must (?:not )?be|cannot be|may not be|should be|no endpoints"
    r"|additional properties)"
)


def _name(parameter: str) -> re.Pattern[str]:
    """Matches a refusal that names ``parameter``, in either order."""
    name = rf"(?<![a-z]){parameter}(?![a-z])"
    return _compile(rf"{name}.{{0,300}}{_REFUSED}|{_REFUSED}.{{0,300}}{name}")


CONCESSIONS = (
    Concession("stream_usage", False, _name("(?:stream_options|include_usage)")),
    Concession("streaming", False, _name("(?:stream|streaming|streamed)(?![a-z_])")),
    Concession("streaming", False, _compile(r"verified to stream")),
    Concession(
        "forced_tool",
        "required",
        _compile(r"tool_choice.{0,80}(type: '?object|must be a string|supported string values|expected a string)"),
        before=("named",),
    ),
    Concession("forced_tool", "asked", _name("tool[_ ]choice")),
    Concession("forced_tool", "asked", _compile(r"tool_choice|forces tool use|forced tool"), before=("required",)),
    Concession(
        "max_tokens_name",
        "max_completion_tokens",
        _compile(r"max_tokens'?\"?`? .{0,80}use '?\"?`?max_completion_tokens"),
    ),
    Concession("max_tokens_name", "max_tokens", _name("max_completion_tokens"), before=("max_completion_tokens",)),
    Concession(
        "short_call_ids",
        True,
        _compile(r"must be a-z, A-Z, 0-9, with a length of 9|tool call ids? should be alphanumeric strings"),
    ),
    Concession(
        "strict_roles",
        True,
        _compile(
            r"roles? must alternate|should (?:alternate with|be alternating)|must alternate between"
            r"|unexpected role '|expected last role"
            r"|last message must have role|system message must be (?:at|in) the beginning"
            r"|first message must be (?:a )?user"
            r"|only (?:one|a single) system message|system role (?:is )?not supported|consecutive (?:user|assistant)"
        ),
    ),
    Concession(
        "thinking",
        "demanded",
        _compile(
            r"(?:reasoning_content|reasoning content|thinking\b).{0,120}must be passed back|missing `?reasoning_content"
            r"|reasoning_content is missing"
        ),
    ),
    Concession("thinking", "signed", _compile(r"thinking\.signature: field required"), before=("returned", "demanded")),
    Concession(
        "thinking",
        "refused",
        _compile(r"invalid `?signature`? in `?thinking|thought[_ ]signature is not valid|invalid_encrypted_content"),
        remembered=False,
    ),
    Concession("thinking", "refused", _name("reasoning_(?:content|details)")),
    Concession(
        "thinking", "refused", _compile(r"messages.{0,60}\breasoning\b(?!_).{0,20}(?:unsupported|not permitted)")
    ),
    Concession(
        "call_signatures", True, _compile(r"missing (?:a |an )?`?thought_?signature|thought_signature.{0,60}missing")
    ),
    Concession("cache_marks", False, _name("cache_control")),
)
"""In order: the first that fits is made."""

_MOST_CONCESSIONS = 4
"""Of one call."""


@dataclass(slots=True)
class Concessions:
    """What one call has conceded to its server so far."""

    format: str
    dialect: Dialect
    lasting: Dialect
    """The dialect without what is true of this conversation alone."""
    made: int = 0
    _changed: set[str] = field(default_factory=set)

    def concede(self, error: ProviderError, sent: Iterable[str]) -> bool:
        """Change the dialect for ``error``; whether the request is worth another try.

        ``sent`` are the fields that the request made use of: what it did not have cannot have been refused.
        """
        if type(error) not in (BadRequestError, ModelNotFoundError) or self.made >= _MOST_CONCESSIONS:
            return False
        text, usable = str(error), {*sent} & {*FIELDS[self.format]}
        for each in CONCESSIONS:
            current = getattr(self.dialect, each.field)
            allowed = current in each.before if each.before else current != each.value
            if each.field in self._changed and each.field != "forced_tool":  # which has three values, in order
                continue
            if each.field in usable and allowed and each.text.search(text):
                change: dict[str, Any] = {each.field: each.value}
                self.dialect = replace(self.dialect, **change)
                if each.remembered:
                    self.lasting = replace(self.lasting, **change)
                self._changed.add(each.field)
                self.made += 1
                return True
        return False


# ---
# Who can read what a model signed.


_FAMILIES = ("claude", "gemini")
"""Vendors whose models read, or leave out, what other models of theirs signed."""


def find_signer(model: str) -> str:
    """Names the models that can read what ``model`` signed: a vendor, or that model alone.

    One server may have the models of many vendors.
    """
    name = model.lower()
    return next((family for family in _FAMILIES if family in name), model)


def describe_differences(dialect: Dialect, format: str) -> dict[str, Any]:
    """The fields of ``dialect`` that count in ``format`` and have another value than the defaults."""
    defaults = {each.name: each.default for each in fields(Dialect)}
    values = {name: getattr(dialect, name) for name in FIELDS[format]}
    return {name: value for name, value in values.items() if value != defaults[name]}
