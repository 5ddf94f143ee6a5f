"""A wrong clock for the perdure of one process: other code of the process, and the SDK, have the machine's."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, tzinfo
from typing import Any


class _Meta(type(datetime)):  # type: ignore[misc]  # the type of a class that is written in C
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, datetime)


def shift_clock(seconds: float) -> None:
    """Move the clock of the perdure modules that are loaded."""
    offset = timedelta(seconds=seconds)

    class ShiftedDatetime(datetime, metaclass=_Meta):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + offset

    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "perdure"]
    shifted = [module for module in modules if vars(module).get("datetime") is datetime]
    assert shifted, "no module of perdure looks at the clock"
    for module in shifted:
        setattr(module, "datetime", ShiftedDatetime)  # noqa: B010  # a module has no such declared attribute
