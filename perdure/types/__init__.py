"""Plain data: what is stored, sent and returned. No I/O, no Temporal.

Modules with models have no ``from __future__ import annotations``: pydantic would compile each annotation once more,
4 % of what perdure adds to the import of Temporal's client.
"""
