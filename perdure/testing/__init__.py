"""What a test of an agent needs: public, documented, and never imported by the engine itself."""

from .provider import ScriptedProvider, call
from .store import MemoryStore

__all__ = ["MemoryStore", "ScriptedProvider", "call"]
