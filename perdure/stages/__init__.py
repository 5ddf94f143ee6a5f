"""The stages around the bare call of a model or a tool, from the outside in:

tracing → inline tools → failures → prepare → journal → events → transcript → iteration → compaction → hooks → paid
→ budget → the call.

The iteration stage runs the hooks that are not around the call, and makes the request before those that are.
(It is in :mod:`perdure.activities`, because it needs the agents.)

Each stage is plain middleware (``ports.Stage``). :mod:`.interceptor` attaches them to Temporal; :func:`compose_model`
and :func:`compose_tool` build the same chain for a call inside the process, as inline tools need it.
"""

from .event_stream import EventsStage, FailuresStage
from .hooks import HookStage
from .inline_tools import InlineStage
from .interceptor import StageInterceptor, TracingStage, compose_model, compose_tool
from .journal import JournalStage, ReplyCacheStage
from .prepare import PrepareStage
from .transcript import TranscriptStage

__all__ = [
    "EventsStage",
    "FailuresStage",
    "HookStage",
    "InlineStage",
    "JournalStage",
    "PrepareStage",
    "ReplyCacheStage",
    "StageInterceptor",
    "TracingStage",
    "TranscriptStage",
    "compose_model",
    "compose_tool",
]
