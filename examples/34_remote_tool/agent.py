"""An agent whose tool is a function in TypeScript: worker.ts beside this file, which knows nothing of perdure."""

import sys
from typing import Any

from perdure import Agent, Veto, hook, remote_tool

PRICE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "nights": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}


@hook("before_tool_call")
def guard(arguments: dict[str, Any]) -> Veto | None:  # runs here, before anything is sent there
    return Veto("we book for 30 nights at most") if arguments.get("nights", 1) > 30 else None


price = remote_tool(
    "price",
    PRICE,
    task_queue="prices",
    description="What a hotel in a city costs.",
    timeout=30,
    idempotent=True,
    retries=3,
    hooks=[guard],
)
planner = Agent("planner", "openai:gpt-5-mini", instructions="You plan trips.", tools=[price])

if __name__ == "__main__":
    print(planner.call_sync(*sys.argv[1:] or ["Three nights in Rome, please."]).content)
