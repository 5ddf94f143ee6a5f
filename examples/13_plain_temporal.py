"""A client without perdure: Temporal's own SDK and plain JSON. Needs a worker: 11_worker.py."""

import asyncio
import os
import uuid

from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig


async def main() -> None:
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    client = await Client.connect(**config)
    handle = await client.start_workflow(
        "AgentWorkflow",
        {"agent": "support", "message": "Where is order 77?"},
        id=f"order-77-{uuid.uuid4()}",
        task_queue=os.environ.get("PERDURE_TASK_QUEUE", "perdure"),
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        memo={"agent": "support"},  # optional: lists show it
    )
    await handle.signal("inject_user_message", {"content": "Be brief, please.", "id": "web-1"})
    status = await handle.query("status")
    print(f"{status['state']}, iteration {status['iteration']}")
    result = await handle.result()
    print(f"{result['content']} ({result['usage']['output_tokens']} tokens)")


if __name__ == "__main__":
    asyncio.run(main())
