"""Limits that an author sets: what a model call, a turn and a run may take, and how fast a provider may be called."""

import re
import reprlib
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from ..errors import DefinitionError
from .messages import Data

HEARTBEAT_SECONDS = 2.0
"""Default of the seconds between two heartbeats of an activity."""
HEARTBEATS_IN_TIMEOUT = 3
"""Intervals without a heartbeat after which a worker is lost."""

# ---
# Durations as people write them: ``90`` (seconds), ``"30s"``, ``"15m"``, ``"1h"``, ``"7d"``, ``"1h30m"``.


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION_TEXT = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_DURATION_PIECE = re.compile(r"(?<!\d)(\d++(?:\.\d+)?)([smhdw])")
LONGEST_SECONDS = 100 * 365 * 86400
"""Every duration is below a century, which Temporal accepts."""


def parse_seconds(value: Any) -> float:
    """Return ``value`` in seconds. Raises ``ValueError`` for a value that is not a duration, or not between zero and
    100 years."""
    if isinstance(value, timedelta):
        duration = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        in_range = abs(value) < LONGEST_SECONDS  # an int may be too large for a float
        duration = float(value) if in_range else LONGEST_SECONDS
    elif isinstance(value, str) and _DURATION_TEXT.fullmatch(value.strip()):
        duration = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PIECE.findall(value))
    else:
        shown = reprlib.repr(value)[:100]  # repr of a value that is nested too deep fails itself
        raise ValueError(f"{shown} is not a duration: give seconds, or text like '30s', '15m', '1h', '7d'")
    if not 0 < duration < LONGEST_SECONDS:
        raise ValueError(f"a duration is above zero and below 100 years, not {value!r:.100}")
    return duration


Seconds = Annotated[float, BeforeValidator(parse_seconds, json_schema_input_type=float | str)]
"""A field that takes any of these and holds seconds."""
Duration = Annotated[float | str | timedelta, BeforeValidator(parse_seconds)]
"""The same in a :class:`Definition`, whose author gives any of these to a typed constructor."""


# ---
# Limits of a run and its turns as stored and sent: what is allowed, what an operator raises, what is used.


LimitName = Literal["max_iterations", "iterations", "tokens", "cost_usd", "wall_time", "tool_calls"]
"""``max_iterations`` is the limit of a turn's iterations; ``iterations`` of all turns."""
LimitScope = Literal["run", "turn"]
DEFAULT_ITERATIONS = 50
"""Model calls allowed in a turn if the agent sets no limit."""
MOST_COUNT = 2**63
"""Counts are below this: stores and other languages have 64 bits for them."""
Count = Annotated[int, Field(ge=1, lt=MOST_COUNT)]
"""A whole number from 1 that 64 bits can hold."""


Amount = Annotated[int, Field(ge=0, lt=MOST_COUNT)]
Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Dollars = Annotated[float, Field(gt=0)]


class Bounds(Data):
    """What a run, or one turn, may use. None means no limit."""

    iterations: Amount | None = None
    tokens: Amount | None = None
    cost_usd: Money | None = None
    wall_time: Money | None = None
    """Seconds."""
    tool_calls: Amount | None = None


class LimitUse(Data):
    """A limit, and how much of it is used."""

    name: LimitName
    scope: LimitScope
    used: float
    """Calls, tokens, dollars, or seconds of ``wall_time``; ``allowed`` has the same unit."""
    allowed: float

    def same(self, other: "LimitUse | None") -> bool:
        """Whether ``other`` is the same limit, not raised since."""
        return other is not None and (self.name, self.scope, self.allowed) == (other.name, other.scope, other.allowed)

    def __str__(self) -> str:
        """``the run has used $0.52 of $0.50 (cost_usd)``."""
        match self.name:
            case "cost_usd":
                amount = f"${self.used:.4g} of ${self.allowed:.4g}"
            case "wall_time":
                amount = f"{self.used:,.1f} of {self.allowed:,.4g} seconds"
            case "tool_calls" | "tokens" | "iterations" | "max_iterations":
                unit = self.name.removeprefix("max_").replace("_", " ")
                amount = f"{self.used:,.0f} of {self.allowed:,.0f} {unit}"
        return f"the {self.scope} has used {amount} ({self.name})"

    @property
    def key(self) -> str:
        """Its name in a request that raises it: ``tokens`` for the run, ``turn.tokens`` for a turn."""
        return f"turn.{self.name}" if self.scope == "turn" and self.name != "max_iterations" else self.name


class TurnLimits(BaseModel):
    """Limits of one turn in a request. Fields that are left out stay unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    iterations: Count | None = None
    tokens: Count | None = None
    cost_usd: Dollars | None = None
    wall_time: Seconds | None = None
    """Seconds, or text like ``"10m"``."""
    tool_calls: Count | None = None


class RunLimits(TurnLimits):
    """Limits of a run, and of its turns: ``{"cost_usd": 5, "turn": {"tokens": 20000}}``."""

    turn: TurnLimits | None = None

    @model_validator(mode="before")
    @classmethod
    def _merge_max_iterations(cls, raw: Any) -> Any:
        """Accept ``max_iterations``, the other name of the turn's iterations."""
        if not isinstance(raw, dict) or "max_iterations" not in raw:
            return raw
        turn = raw.get("turn") or {}
        if not isinstance(turn, dict) or turn.get("iterations") is not None:
            raise ValueError("max_iterations and turn.iterations are the same limit: give one of them")
        rest = {name: value for name, value in raw.items() if name != "max_iterations"}
        return {**rest, "turn": {**turn, "iterations": raw["max_iterations"]}}


# ---
# Settings that an author writes.


class Definition(BaseModel):
    """Base of an author's settings: a wrong one raises ``DefinitionError``, which names the field."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="wrap")
    @classmethod
    def _raise_definition_error(cls, fields: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(fields)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            owner, place = cls.model_config.get("title") or cls.__name__, ".".join(map(str, problem["loc"]))
            text = f"{owner}: {place}: {problem['msg']}".replace(": : ", ": ").replace(": Value error, ", ": ")
            if ": Input should" in text:
                text = text.replace(": Input should", " must") + f", not {problem['input']!r:.100}"
            raise DefinitionError(text, hint=f"{owner} takes {', '.join(cls.model_fields)}.") from None


DEFAULT_RETRY_WAIT = 3600.0
"""Default of ``Limits.retry_wait``."""


class Limits(Definition):
    """Limits of an agent's runs: ``Limits(cost_usd=2.0, wall_time="1h", turn=Limits(tokens=50_000))``.

    ``attempts``, ``call_timeout`` and ``retry_wait`` apply to each model call: beyond the first two its run fails. The
    others apply to the run with all its turns, and with ``turn=`` to each turn: when one is used up, the agent's
    ``on_limit`` decides what happens. They are checked before each model call; calls that are under way end normally.
    None means no limit. Raises ``DefinitionError`` that names the field.
    """

    attempts: Count | None = None
    """Failed attempts allowed for one model call: after the last the run fails with its error. With a chain of models
    an attempt has failed when all of them have. An attempt does not count if the provider said when to repeat it (429
    with Retry-After), if its worker was lost, if the store failed, or if it ended with ``RetryLaterError``."""
    call_timeout: Duration | None = None
    """Most time for one model call with all its attempts and the waits between them, from the moment that the first was
    scheduled; until one has failed, the next one has all of it: seconds, or text like ``"10m"``; stored as a number of
    seconds."""
    retry_wait: Duration = DEFAULT_RETRY_WAIT
    """The longest wait before the next attempt that a provider may ask for (Retry-After); an hour by default, and
    always limited. If a provider asks for more, the call is repeated after this time: the error and its event say so,
    and the attempt counts. Seconds, or text like ``"10m"``; stored as a number of seconds."""
    iterations: Count | None = None
    """Model calls. The limit of a turn is the agent's ``max_iterations``."""
    tokens: Count | None = None
    """Input and output tokens of all model calls, including cached tokens."""
    cost_usd: Dollars | None = None
    """Dollars. A model without a known price is an error when the agent is defined, or with its first reply: set the
    price with ``register_price``."""
    wall_time: Duration | None = None
    """Time at work, from the first step: model calls, tools, retries and waits for a worker. The clock stops while a
    session waits for a message, or a run for an operator. Seconds, or text like ``"10m"``."""
    tool_calls: Count | None = None
    """Tool calls. A call beyond the limit is refused with a result that says so."""
    turn: "Limits | None" = None
    """Limits of each turn."""

    @field_validator("turn")
    @classmethod
    def _check_turn(cls, turn: "Limits | None") -> "Limits | None":
        for name in () if turn is None else ("attempts", "call_timeout", "retry_wait", "turn"):
            if getattr(turn, name) != cls.model_fields[name].default:
                raise ValueError(f"it has {name}, which is not a limit of a turn: set it beside turn=")
        return turn

    @property
    def retry_seconds(self) -> float:
        """``retry_wait`` in seconds."""
        return parse_seconds(self.retry_wait)

    @property
    def call_seconds(self) -> float | None:
        """``call_timeout`` in seconds."""
        return None if self.call_timeout is None else parse_seconds(self.call_timeout)

    @property
    def limits_cost(self) -> bool:
        """Whether the cost of the run or its turns is limited."""
        return self.cost_usd is not None or (self.turn is not None and self.turn.cost_usd is not None)

    @property
    def limits_tokens(self) -> bool:
        """Whether the tokens of the run or its turns are limited."""
        return self.tokens is not None or (self.turn is not None and self.turn.tokens is not None)

    @property
    def of_run(self) -> Bounds | None:
        """Limits of the run; None without limits."""
        return self._build_bounds(self.iterations)

    @property
    def of_turn(self) -> Bounds | None:
        """Limits of a turn besides its iterations, which are the agent's ``max_iterations``."""
        return self.turn._build_bounds(None) if self.turn is not None else None

    def _build_bounds(self, iterations: int | None) -> Bounds | None:
        bounds = Bounds.model_validate({**self.model_dump(include=set(Bounds.model_fields)), "iterations": iterations})
        return None if bounds == Bounds() else bounds

    def changed(self, change: RunLimits) -> "Limits":
        """Return the limits with those of ``change`` in place of their own."""
        turn = self.turn
        if change.turn is not None:
            turn = (turn or Limits()).model_copy(update=_dump_set_limits(change.turn))
        return self.model_copy(update={**_dump_set_limits(change), "turn": turn})


class RateLimit(Definition):
    """Limits on calls of a provider, per worker process: ``Worker(…, provider_limits={"anthropic":
    RateLimit(concurrent=8, per_minute=50)})``.

    None means no limit. Raises ``DefinitionError`` that names the field.
    """

    concurrent: Count | None = None
    """Most calls of the provider at the same time."""
    per_minute: Count | None = None
    """Most calls that start within any 60 seconds."""


def _dump_set_limits(change: TurnLimits) -> dict[str, Any]:
    return change.model_dump(exclude_none=True, exclude={"turn"})


def check_whole_number(owner: str, field: str, value: object, *, least: int = 1, hint: str) -> None:
    """Raise ``DefinitionError``, unless ``value`` is a whole number from ``least`` that 64 bits can hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST_COUNT:
        problem = f"{owner}: {field} must be a whole number of at least {least}, not {value!r:.100}"
        raise DefinitionError(problem, hint=f"{hint} The largest is {MOST_COUNT - 1:,}.")
