"""What a test of an agent needs: public, documented, and never imported by the engine itself."""

from ..worker.replay import Replayed, ReplayError, ReplayReport, replay
from .block import ModelsBlockedError, block_models
from .faults import at, cut, fail, hang, kill_at
from .provider import ScriptedProvider, ScriptError, call, finish
from .scripted import Script, scripted
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
