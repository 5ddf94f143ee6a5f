"""The client: starts, steers, follows and lists runs."""

from .client import Client

__all__ = ["Client"]
