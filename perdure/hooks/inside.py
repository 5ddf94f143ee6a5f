"""What an author's code changes inside a message: the worker has each message once, for all who read it."""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from typing import Any

from ..errors import DefinitionError
from ..types.messages import Message


class Inside:
    """The arguments of calls as they were: the one thing in a message that can be changed in place."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._before = [(part, _packed(part.arguments)) for message in messages for part in message.tool_calls]

    def put_back(self) -> list[str]:
        """Undo what was changed. Names of the tools whose calls were."""
        changed = []
        for part, before in self._before:
            if before is not None and _packed(part.arguments) != before:
                changed.append(part.name)
                part.arguments.clear()
                part.arguments.update(marshal.loads(before))  # noqa: S302  # we have written it ourselves
        return changed

    def check(self, where: str) -> None:
        """Undo it, and raise ``DefinitionError`` that says what to do instead, to the messages ``where``."""
        if changed := self.put_back():
            raise DefinitionError(
                f"the arguments of a call of {changed[0]} were changed inside their message, which nobody would record",
                hint=f"Put another message in its place: {where} = message.model_copy(update={{'parts': …}}).",
            )


def same(one: Any, other: Any) -> bool:
    """Whether they are the same as plain JSON, where true is not 1, nor 1.0."""
    return bool(one == other) and _packed(one) == _packed(other)


def _packed(arguments: Any) -> Any:
    try:
        return marshal.dumps(arguments, 2)  # the version that depends on the values alone
    except ValueError:  # somebody has put in what is no plain JSON; or it is nested hundreds of times
        return None
