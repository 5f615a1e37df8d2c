"""The model's `python` tool, over a sandbox."""

from rose.chat.conversation import BuiltinTool
from rose.server.builtin_tools.result import ToolResult, shortened
from rose.server.builtin_tools.sandbox import Sandbox, SandboxFailed

NAME = "python"


class CodeInterpreter:
    """Runs what the model sends to `python`. Each call is a new process: nothing is kept."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        network = "There is no network." if sandbox.isolation == "namespaces" else "Do not use the network."
        self.tool = BuiltinTool(
            NAME,
            "Runs Python code as part of your reasoning; the user does not see it.\n\n"
            "A message with Python code to python is run by a new Python process, which answers with what the code "
            f"printed and with the value of its last expression, or is ended after {sandbox.limits.wall_s:g} seconds. "
            "Calls are stateless: neither variables nor files are kept, so send all the code that is needed each "
            f"time. {network}",
        )

    async def call(self, code: str) -> ToolResult:
        """Run the code. An exception in it is a result like any other."""
        try:
            result = await self._sandbox.run(code)
        except SandboxFailed as failed:
            return ToolResult(f"Python cannot be run: {failed}", failed=True)
        text = shortened(result.output)
        if result.fault is not None:
            text += f"\n[The code was stopped: {result.fault}.]"
        return ToolResult(text or "(no output)", failed=result.fault is not None)
