"""Where requests for a forced form of the answer end for now, whichever API they come by.

Each API asks here with the field's name; what is honoured one day becomes a value that goes into `GenerationRequest`.
"""

from rose.errors import RequestError
from rose.server.errors import unsupported


def refuse_forced_tool(param: str) -> RequestError:
    """The refusal of a choice that obliges the model to call a tool."""
    return unsupported(param, f"a forced {param} is not supported yet; let the model choose, or choose none")


def refuse_output_format(param: str, wanted: str) -> RequestError:
    """The refusal of a form that the answer's text must have."""
    return unsupported(param, f"{param} {wanted} is not supported yet; only plain text is")
