"""What an MCP server gives, as tools have it."""

from __future__ import annotations

import base64
import re
from typing import Any

from mcp.types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

from ..errors import ToolError
from ..ports import ListedTool
from ..types.files import File

_NAME = re.compile(r"[^/]+$")


class MCPToolError(ToolError):
    """The tool of an MCP server failed; the message is the server's."""


def listed(tool: Tool, timeout: float | None = None) -> ListedTool:
    """``tool`` as a toolset lists it. What only reads may be called twice, and what is idempotent by its own word."""
    hints = tool.annotations
    harmless = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return ListedTool(tool.name, tool.description or "", dict(tool.input_schema), idempotent=harmless, timeout=timeout)


def result(name: str, given: CallToolResult) -> Any:
    """Text, or a list of texts and files. Raises :class:`MCPToolError` for one that says that it is an error."""
    pieces = [_piece(block) for block in given.content]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if given.is_error:
        raise MCPToolError("\n".join(texts) or f"{name} failed, and the server does not say why")
    if not pieces:
        return given.structured_content if given.structured_content is not None else ""
    return "\n".join(texts) if len(texts) == len(pieces) else pieces


def _piece(block: Any) -> str | File:
    match block:
        case TextContent(text=text):
            return text
        case ImageContent(data=data, mime_type=kind) | AudioContent(data=data, mime_type=kind):
            return _file(data, kind, None)
        case EmbeddedResource(resource=resource):
            if isinstance(resource, TextResourceContents):
                return f"[{resource.uri}]\n{resource.text}"
            return _file(resource.blob, resource.mime_type or "application/octet-stream", str(resource.uri))
        case ResourceLink(uri=uri, name=name, description=description):
            return f"[{name}: {uri}]{f' {description}' if description else ''}"
        case _:
            return str(block.model_dump_json())


def _file(data: str, kind: str, uri: str | None) -> str | File:
    body = base64.b64decode(data)
    found = _NAME.search(uri) if uri else None
    if not body:
        return f"[an empty file, {kind}]"
    return File(body, kind.partition(";")[0].strip(), found[0] if found else None)
