"""The bare calls (a model through its provider, a tool through its function) and the iteration stage around them.

Ports are injected.
"""

from .agents import Agents
from .author_loop import AuthorLoop
from .collect import CollectActivity
from .iteration import IterationStage
from .model import ModelActivity
from .run_context import MemoryFactory, StoreGrants
from .tools import ToolActivity

__all__ = [
    "Agents",
    "AuthorLoop",
    "CollectActivity",
    "IterationStage",
    "MemoryFactory",
    "ModelActivity",
    "StoreGrants",
    "ToolActivity",
]
