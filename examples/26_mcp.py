"""Tools of an MCP server, here the reference server of npm: python examples/26_mcp.py [COMMAND ARGUMENTS...]"""

import asyncio
import sys

from perdure import Agent, local
from perdure.mcp import MCPServer

command, *arguments = sys.argv[1:] or ["npx", "-y", "@modelcontextprotocol/server-everything"]
server = MCPServer.stdio(command, arguments, name="everything", prefix="mcp_")
agent = Agent("adder", "openai:gpt-5-mini", toolsets=[server])


async def main() -> None:
    async with local(agents=[agent]) as client:  # the server is started when it is needed, and ends with the block
        run = await client.start(agent, "What is 19 plus 23?")
        print((await run.result()).content)


asyncio.run(main())
