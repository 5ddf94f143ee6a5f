"""Hooks: what an author, or an operator, has run around the calls of an agent: in activities, under the journal.

:mod:`.hook` makes them and says what each event gives; :mod:`.fire` runs them, :mod:`.returned` reads what they return.
The stages say when.
"""

from .dispatch import Given, Run, Take, fire, fire_all
from .hook import EVENTS, Event, Hook, HookSet, Veto, checked_hooks, hook
from .step import Step

__all__ = [
    "EVENTS",
    "Event",
    "Given",
    "Hook",
    "HookSet",
    "Run",
    "Step",
    "Take",
    "Veto",
    "checked_hooks",
    "fire",
    "fire_all",
    "hook",
]
