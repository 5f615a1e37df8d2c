"""A server of tools that answers every call with a long error, and never answers who wants to end a session."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any


@contextlib.asynccontextmanager
async def rude_server() -> AsyncGenerator[str, None]:
    """Serve in this process; its address."""
    server = await asyncio.start_server(_serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            if head.startswith("delete"):
                await reader.read()  # until the client gives up
                return
            length = next((line.split(":")[1] for line in head.splitlines() if line.startswith("content-length")), "0")
            body = await reader.readexactly(int(length))
            answer = _answer(json.loads(body)) if head.startswith("post") else None
            text = b"" if answer is None else json.dumps({"jsonrpc": "2.0", **answer}).encode()
            status = "200 OK" if text else "202 Accepted" if head.startswith("post") else "405 Method Not Allowed"
            kind = "content-type: application/json\r\nmcp-session-id: 1"
            writer.write(f"HTTP/1.1 {status}\r\n{kind}\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)
            await writer.drain()


def _answer(asked: dict[str, Any]) -> dict[str, Any] | None:
    match asked:
        case {"id": number, "method": "initialize", "params": {"protocolVersion": version}}:
            about = {"name": "rude", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
            return {"id": number, "result": result}
        case {"id": number, "method": "tools/list"}:
            return {"id": number, "result": {"tools": [{"name": "search", "inputSchema": {"type": "object"}}]}}
        case {"id": number, "method": "tools/call"}:
            return {"id": number, "error": {"code": -32000, "message": "no " * 50_000}}
        case {"id": number}:
            return {"id": number, "error": {"code": -32601, "message": "no such method"}}
    return None
