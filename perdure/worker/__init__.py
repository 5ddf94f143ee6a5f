"""The composition root: from agents and settings to a Temporal worker."""

from .engine import Engine, Lifespan
from .plugin import PerdurePlugin
from .worker import Worker

__all__ = ["Engine", "Lifespan", "PerdurePlugin", "Worker"]
