"""Shared by the tests that use a real Temporal server.

- ``wait``: ``eventually(condition)`` polls a sync or async condition until a deadline.
- ``engine``: :class:`Engine`, which the fixture ``engine`` (tests/conftest.py) yields: a fresh task queue and a
  fresh store on the session's embedded server. ``async with engine.served(agent) as client`` runs a worker in
  this process; ``engine.client()`` is a client alone; ``engine.process("counting", …)`` is a worker in a process
  of its own, which can be killed.
- ``ledger``: :class:`Ledger`, a file to which side effects are appended across processes, so that a double one shows.
- ``scripts``: replies for ``perdure.testing.ScriptedProvider``.
- ``checks``: what every closed transcript must fulfil.
- ``transcripts``: hypothesis strategies for transcripts; ``formats``: the four wire formats, and what each can hold.

Worker files for processes stand in tests/workers/.
"""
