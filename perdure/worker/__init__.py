"""The composition root: builds a Temporal worker from agents and settings."""

from .engine import Engine, Lifespan
from .plugin import PerdurePlugin
from .worker import Worker

__all__ = ["Engine", "Lifespan", "PerdurePlugin", "Worker"]
