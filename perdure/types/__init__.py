"""Plain data: what is stored, sent and returned. No I/O, no Temporal.

Modules with models have no ``from __future__ import annotations``: pydantic would compile each annotation once more, a
twentieth of what an import of perdure takes.
"""
