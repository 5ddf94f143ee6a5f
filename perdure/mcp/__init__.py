"""MCP servers as toolsets: ``Agent(toolsets=[MCPServer.stdio("npx", ["some-server"])])``. Needs the extra ``mcp``."""

from .oauth import ClientCredentials as ClientCredentials
from .oauth import OAuth as OAuth
from .server import MCPServer as MCPServer
