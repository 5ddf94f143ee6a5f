"""The composition root: from agents and settings to a Temporal worker."""

from .engine import Engine
from .plugin import PerdurePlugin
from .resources import Lifespan
from .worker import Worker

__all__ = ["Engine", "Lifespan", "PerdurePlugin", "Worker"]
