"""A worker of a cluster: the agents of ``counting`` and ``chatting``."""

from __future__ import annotations

from tests.support.engine import run_worker
from tests.workers import chatting, counting

if __name__ == "__main__":
    run_worker([counting.agent, chatting.agent])
