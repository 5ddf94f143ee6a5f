"""The loop's decisions: pure functions over plain data. No I/O, no clock, no Temporal.

:func:`decide` says what comes next for a state; the ``apply`` functions say what the state is after it
happened. Whoever drives the loop (a workflow, or a test in process) only carries messages between the two.
"""

from .apply import abort, apply_closed, apply_model, apply_result, apply_returned, fail_after_calls
from .approvals import ask, check_approval, check_revocation, decide_approval, repeats, revoke, told_revoked
from .background import child_ended, gather
from .compaction import Compact, apply_compacted, too_long, tried
from .decide import (
    CallModel,
    Close,
    End,
    Next,
    Remind,
    Report,
    RunBranches,
    RunCalls,
    StopChildren,
    Wait,
    decide,
    joining,
)
from .finish import response
from .lifecycle import (
    cancel,
    carry_over,
    close,
    continue_state,
    continues,
    fail,
    interrupt,
    open_state,
    parse_start,
    pause,
    read_limits,
    resume,
    settle,
    stopped,
)
from .limits import left, tick
from .messages import check_message, receive, refuse, send
from .questions import answer_call, ask_person, check_answer, clear
from .questions import repeats as repeats_answer
from .status import status, to_index, to_note, waiting_now
from .subagents import (
    Ended,
    apply_branch,
    apply_child,
    branch_id,
    branch_start,
    child_id,
    child_start,
    settle_branch,
    was_stopped,
)
from .turns import turn_status
from .waits import Reminding, beside, due, expiry, remind

__all__ = [
    "CallModel",
    "Close",
    "Compact",
    "End",
    "Ended",
    "Next",
    "Remind",
    "Reminding",
    "Report",
    "RunBranches",
    "RunCalls",
    "StopChildren",
    "Wait",
    "abort",
    "answer_call",
    "apply_branch",
    "apply_child",
    "apply_closed",
    "apply_compacted",
    "apply_model",
    "apply_result",
    "apply_returned",
    "ask",
    "ask_person",
    "beside",
    "branch_id",
    "branch_start",
    "cancel",
    "carry_over",
    "check_answer",
    "check_approval",
    "check_message",
    "check_revocation",
    "child_ended",
    "child_id",
    "child_start",
    "clear",
    "close",
    "continue_state",
    "continues",
    "decide",
    "decide_approval",
    "due",
    "expiry",
    "fail",
    "fail_after_calls",
    "gather",
    "interrupt",
    "joining",
    "left",
    "open_state",
    "parse_start",
    "pause",
    "read_limits",
    "receive",
    "refuse",
    "remind",
    "repeats",
    "repeats_answer",
    "response",
    "resume",
    "revoke",
    "send",
    "settle",
    "settle_branch",
    "status",
    "stopped",
    "tick",
    "to_index",
    "to_note",
    "told_revoked",
    "too_long",
    "tried",
    "turn_status",
    "waiting_now",
    "was_stopped",
]
