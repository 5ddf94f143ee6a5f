"""The bare calls: a model through its provider, and a tool through its function. Ports are injected."""

from .agents import Agents
from .author_loop import AuthorLoop
from .memory import StoredMemory
from .model import ModelActivity
from .tools import ToolActivity

__all__ = ["Agents", "AuthorLoop", "ModelActivity", "StoredMemory", "ToolActivity"]
