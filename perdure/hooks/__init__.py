"""Hooks: functions of an author or operator that run around model calls, tool calls and messages.

They run in activities, under the journal. :mod:`.hook` defines them and their events, :mod:`.dispatch` runs them and
reads what they return, :mod:`.step` and :mod:`.branch` are what a step policy gets. The stages call them. What runs
hooks is loaded when it is first used: programs that define them do without.
"""

from typing import TYPE_CHECKING

from .._lazy import NameLoader
from .hook import EVENTS, Hook, HookEvent, HookSet, Veto, hook, list_hook_events, select_hooks, validate_hooks

if TYPE_CHECKING:
    from .dispatch import AuthorRunner, HookArguments, ReturnHandler, run_hooks
    from .step import Step
else:
    __getattr__ = NameLoader(
        __name__, {".dispatch": "AuthorRunner HookArguments ReturnHandler run_hooks", ".step": "Step"}
    )
    __dir__ = __getattr__.list_names

__all__ = [
    "EVENTS",
    "AuthorRunner",
    "Hook",
    "HookArguments",
    "HookEvent",
    "HookSet",
    "ReturnHandler",
    "Step",
    "Veto",
    "hook",
    "list_hook_events",
    "run_hooks",
    "select_hooks",
    "validate_hooks",
]
