"""Public tools for tests of agents. The engine never imports this package."""

from ..worker.replay import Replayed, ReplayError, ReplayReport, replay
from .provider import ScriptedProvider, ScriptError, at, call, cut, fail, finish, hang, kill_at
from .scripted import ModelsBlockedError, Script, block_models, scripted
from .store import MemoryStore

__all__ = [
    "MemoryStore",
    "ModelsBlockedError",
    "ReplayError",
    "ReplayReport",
    "Replayed",
    "Script",
    "ScriptError",
    "ScriptedProvider",
    "at",
    "block_models",
    "call",
    "cut",
    "fail",
    "finish",
    "hang",
    "kill_at",
    "replay",
    "scripted",
]
