"""The loop's decisions: pure functions over plain data. No I/O, no clock, no Temporal.

:func:`decide` says what comes next for a state; the ``apply`` functions say what the state is after it
happened. Whoever drives the loop (a workflow, or a test in process) only carries messages between the two.
"""

from .answer import response
from .apply import apply_closed, apply_model, apply_result, cancel, close, fail, pause, receive, resume
from .decide import CallModel, Close, End, Next, RunCalls, Wait, decide
from .start import carry_over, open_state, parse_start
from .status import status

__all__ = [
    "CallModel",
    "Close",
    "End",
    "Next",
    "RunCalls",
    "Wait",
    "apply_closed",
    "apply_model",
    "apply_result",
    "cancel",
    "carry_over",
    "close",
    "decide",
    "fail",
    "open_state",
    "parse_start",
    "pause",
    "receive",
    "response",
    "resume",
    "status",
]
