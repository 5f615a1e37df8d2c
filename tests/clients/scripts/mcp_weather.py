"""An MCP server with one tool, over standard input and output. The standard library has all it needs."""

import json
import sys

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "The weather in a city.", "inputSchema": SCHEMA}
for line in sys.stdin:
    message = json.loads(line)
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            about = {"name": "weather", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": '{"temperature": 21, "sky": "clear"}'}]}
        case _:
            result = {}
    if "id" in message:  # else it is a notification
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
