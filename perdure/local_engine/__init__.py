"""The engine on this machine: server, worker and client in one process. ``local()`` and ``Agent`` use it."""
