"""A server of the Model Context Protocol on standard input and output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from forescale.struct import Struct
from forescale.version import __version__

MOST_INPUT = 4 << 20
"""Bytes of the arguments of a call."""


class Tool(Struct, frozen=True, kw_only=True):
    """A command as a tool."""

    name: str
    text: str
    schema: Mapping[str, Any]
    """JSON schema of its arguments."""
    call: Callable[[Mapping[str, Any]], tuple[str, bool]]
    """Returns the text of an answer, and whether it is an error."""


def server_of(tools: Sequence[Tool]) -> Server[Any]:
    """Return the server of some tools; one call runs at a time."""
    known, lock = {tool.name: tool for tool in tools}, anyio.Lock()

    async def listed(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool.name, description=tool.text, input_schema=dict(tool.schema))
                for tool in tools
            ]
        )

    async def called(_: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool, arguments = known.get(params.name), params.arguments or {}
        if tool is None:
            text, failed = f"error: no tool {params.name!r}; there are {', '.join(known)}", True
        elif len(str(arguments)) > MOST_INPUT:
            text, failed = f"error: arguments of more than {MOST_INPUT >> 20} MiB", True
        else:
            async with lock:
                text, failed = await anyio.to_thread.run_sync(partial(tool.call, arguments))
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    return Server("forescale", version=__version__, on_list_tools=listed, on_call_tool=called)


def serve(tools: Sequence[Tool]) -> None:
    """Serve tools until standard input ends."""

    async def run() -> None:
        server = server_of(tools)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)
