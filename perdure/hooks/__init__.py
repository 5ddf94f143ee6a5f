"""Hooks: what an author, or an operator, has run around the calls of an agent: in activities, under the journal.

:mod:`.hook` makes them and says what each event gives; :mod:`.fire` runs them, :mod:`.returned` reads what they return.
The stages say when.
"""

from .dispatch import AuthorRunner, HookArguments, ReturnHandler, run_hook, run_hooks
from .hook import EVENTS, Hook, HookEvent, HookSet, Veto, hook, validate_hooks
from .step import Step

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
    "run_hook",
    "run_hooks",
    "validate_hooks",
]
