"""What an agent declares of its input and its output, and what its own code can do with the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from ..errors import DefinitionError, InvalidInputError
from ..tools.context_type import ContextType
from ..tools.schema import PlainSchema, untitled
from ..types.interface import FinishProtocol
from .output import OutputType
from .validators import OutputValidator, checked_validator, checked_validators
from .xml import to_xml

Validator = TypeVar("Validator", bound=Callable[..., Any])

PARSE_RETRIES = 2


class Typed:
    """The part of an ``Agent`` that knows its types."""

    name: str

    def _declare(self, input: Any, output: Any, finish: Any, parse_retries: Any, validators: Any) -> None:
        """Check and keep what the agent was given. Raises ``DefinitionError``."""
        self.input = input
        """The declared type of what a run is asked; ``str`` is text and files."""
        self._input = None if input is str else ContextType(self.name, input, "input")
        self.output = output
        """The declared type of the answers."""
        self.output_type = OutputType(self.name, output)
        self.finish: FinishProtocol = checked_finish(self.name, self.output_type, finish)
        self.parse_retries = _checked_retries(self.name, parse_retries)
        """How often an answer that is not of the type goes back to the model before the run fails."""
        self.output_validators: tuple[OutputValidator, ...] = checked_validators(self.name, validators)

    def output_validator(self, fn: Validator) -> Validator:
        """``@agent.output_validator``: a function of the output, or of the output and a ``RunContext``, sync or async.

        It returns the output, changed if need be, or raises ``ModelRetry("why")``: then the model is told, and gives
        another answer. It counts as one that is not of the type. Raises ``DefinitionError``.
        """
        self.output_validators = (*self.output_validators, checked_validator(self.name, fn))
        return fn

    @property
    def takes_input(self) -> bool:
        """Whether it declares an input type."""
        return self._input is not None

    def check_input(self, value: Any) -> dict[str, Any]:
        """``value``, a mapping or an instance of the agent's input type, as the plain JSON that a run is given.

        Raises ``InvalidInputError`` that names the field.
        """
        if self._input is None:
            raise InvalidInputError(
                f"agent {self.name!r} takes text and files, not {value!r:.100}",
                hint=f"Declare what it takes: Agent({self.name!r}, …, input={type(value).__name__}).",
            )
        return self._input.check(value)

    def render_input(self, plain: Mapping[str, Any]) -> str:
        """What the model is shown of an input: the value with its defaults, as XML. Validators of the author's run in
        it. Raises ``InvalidInputError``."""
        if self._input is None:
            raise InvalidInputError(
                f"agent {self.name!r} declares no input type, and was given one",
                hint="Send it a message: text, or texts and files.",
            )
        adapter = self._input.adapter
        whole = adapter.dump_python(self._input.read(plain), mode="json", by_alias=True, round_trip=True)
        return to_xml(whole, adapter.json_schema())

    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the input type: an object."""
        assert self._input is not None, "an agent with an input type"
        schema: dict[str, Any] = untitled(self._input.adapter.json_schema(schema_generator=PlainSchema))
        return {"type": "object", "properties": {}, **schema}

    def read_output(self, plain: Any) -> Any:
        """A ``Response.output`` as plain JSON (of ``client.run(id)``, or of another language) as a value of the agent's
        output type. Raises ``ParseError``."""
        return self.output_type.load(plain)


def checked_finish(name: str, output: OutputType, finish: Any) -> FinishProtocol:
    """The finish protocol, which has to be one that can carry the output. Raises ``DefinitionError``."""
    allowed: tuple[FinishProtocol, ...] = get_args(FinishProtocol)
    if finish is None:
        return "text" if output.is_text else "tool"
    if finish not in allowed:
        raise DefinitionError(
            f"agent {name!r}: finish is {finish!r:.100}, it can be {', '.join(allowed)}",
            hint="Leave it out for the one that fits the output.",
        )
    if finish != "tool" and not output.is_text:
        raise DefinitionError(
            f"agent {name!r}: finish={finish!r} gives text, and the output is of a type",
            hint="Leave finish out: an output of a type comes by finish='tool'.",
        )
    return finish  # type: ignore[no-any-return]  # it is one of the allowed


def _checked_retries(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DefinitionError(
            f"agent {name!r}: parse_retries must be a whole number from 0, not {value!r:.100}",
            hint="For instance parse_retries=2.",
        )
    return value
