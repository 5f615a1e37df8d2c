"""A real server of tools, in a process of its own: `python mcp_server.py PORT`."""

import sys

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("pages")
PAGES = {"https://tides.example/oban": "Oban: high at 4.", "https://tides.example/mallaig": "Mallaig: high at 5."}


@server.tool()
def search(query: str, topn: int = 10) -> str:
    """Searches the pages."""
    if query == "break":
        raise ToolError("the index is broken")
    found = [f"{address} {text}" for address, text in PAGES.items() if query.lower() in text.lower()]
    return "\n".join(found[:topn])


@server.tool()
def fetch_page(url: str) -> str:
    """Gets a page."""
    return PAGES[url]


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
