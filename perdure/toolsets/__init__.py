"""Toolsets that come with perdure."""

from . import artifacts
from .artifacts import Artifact, Artifacts

__all__ = ["Artifact", "Artifacts", "artifacts"]
