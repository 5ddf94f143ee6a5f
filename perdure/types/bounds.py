"""What a run and its turns may use, as it crosses the wire: what is allowed, what a person raises, what is used."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .duration import Seconds
from .messages import Data

LimitName = Literal["max_iterations", "iterations", "tokens", "cost_usd", "wall_time", "tool_calls"]
"""``max_iterations`` is the turn's iterations; ``iterations`` those of all turns."""
LimitScope = Literal["run", "turn"]
Count = Annotated[int, Field(ge=1, lt=2**63)]
"""A whole number that a float can carry, too."""


Amount = Annotated[int, Field(ge=0, lt=2**63)]
Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Bounds(Data):
    """What a run, or one turn, may use. None is no limit."""

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
    """Calls, tokens, dollars, or seconds of ``wall_time``; ``allowed`` likewise."""
    allowed: float

    def same(self, other: LimitUse | None) -> bool:
        """Whether ``other`` is the same limit, not raised since."""
        return other is not None and (self.name, self.scope, self.allowed) == (other.name, other.scope, other.allowed)

    def __str__(self) -> str:
        """``the run has used $0.52 of $0.50 (cost_usd)``."""
        match self.name:
            case "cost_usd":
                said = f"${self.used:.4g} of ${self.allowed:.4g}"
            case "wall_time":
                said = f"{self.used:,.1f} of {self.allowed:,.4g} seconds"
            case "tool_calls":
                said = f"{self.used:,.0f} of {self.allowed:,.0f} tool calls"
            case "tokens":
                said = f"{self.used:,.0f} of {self.allowed:,.0f} tokens"
            case "iterations" | "max_iterations":
                said = f"{self.used:,.0f} of {self.allowed:,.0f} iterations"
        return f"the {self.scope} has used {said} ({self.name})"

    @property
    def key(self) -> str:
        """As it is named where it is raised: ``tokens`` of the run, ``turn.tokens`` of a turn."""
        return f"turn.{self.name}" if self.scope == "turn" and self.name != "max_iterations" else self.name


class TurnLimits(BaseModel):
    """Limits of one turn, as somebody sends them. What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    iterations: Count | None = None
    tokens: Count | None = None
    cost_usd: Annotated[float, Field(gt=0)] | None = None
    wall_time: Seconds | None = None
    """Seconds, or text like ``"10m"``."""
    tool_calls: Count | None = None


class RunLimits(TurnLimits):
    """Limits of a run, and of its turns: ``{"cost_usd": 5, "turn": {"tokens": 20000}}``."""

    turn: TurnLimits | None = None

    @model_validator(mode="before")
    @classmethod
    def _turn_iterations(cls, raw: Any) -> Any:
        """``max_iterations`` is the other name of the turn's iterations."""
        if not isinstance(raw, dict) or "max_iterations" not in raw:
            return raw
        turn = raw.get("turn") or {}
        if not isinstance(turn, dict) or turn.get("iterations") is not None:
            raise ValueError("max_iterations and turn.iterations are the same limit: give one of them")
        rest = {name: value for name, value in raw.items() if name != "max_iterations"}
        return {**rest, "turn": {**turn, "iterations": raw["max_iterations"]}}
