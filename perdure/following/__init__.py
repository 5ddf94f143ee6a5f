"""Following a run from outside: its events as they come, to its end. Nothing of it is in Temporal's history."""

from .begun import begun
from .decisions import decisions
from .follow import follow, follow_turn
from .live import LiveText

__all__ = ["LiveText", "begun", "decisions", "follow", "follow_turn"]
