"""Hooks: what an author, or an operator, has run around the calls of an agent: in activities, under the journal.

:mod:`.hook` makes them and says what each event gives; :mod:`.fire` runs them. The stages say when.
"""

from .fire import HookSet, fire
from .hook import EVENTS, Hook, Veto, checked_hooks, hook

__all__ = ["EVENTS", "Hook", "HookSet", "Veto", "checked_hooks", "fire", "hook"]
