"""Following a run from outside: its events as they come, to its end. Nothing of it is in Temporal's history."""

from .follow import follow, follow_turn
from .live import LiveText

__all__ = ["LiveText", "follow", "follow_turn"]
