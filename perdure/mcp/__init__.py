"""MCP servers as toolsets: ``Agent(toolsets=[MCPServer.stdio("npx", ["some-server"])])``. Needs ``perdure[mcp]``."""

from .server import MCPServer as MCPServer
