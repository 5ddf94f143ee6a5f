"""The ports of the engine: protocols of model providers, stores and toolsets.

Each protocol is small, names no SDK, and has a public fake in ``perdure.testing``. Their rows are dozens of
dataclasses, which take 50 ms to load and most of which a client never makes: a module that each program loads imports
them in the function that makes them.
"""
