"""The exceptions of `rose`: one class for each thing a caller can act on.

    RoseError
    ├── ConfigError              an option or a combination of options that cannot work; fix the command
    ├── CheckpointError          a file of the checkpoint is missing, damaged or not what its config says
    │   └── UnsupportedModel     a sound checkpoint of an architecture or format that `rose` does not serve
    ├── UnsupportedShape         a kernel was called outside its contract (a bug in `rose`, or a new model)
    ├── RequestError             this one request cannot be served; the client must change it
    │   └── ContextLengthExceeded
    └── EngineDead               the engine process is gone; every open request fails with this

Nothing in `rose` raises a bare `Exception` at a caller for one of these, and the command line prints
a `RoseError` as one line without a traceback.
"""


class RoseError(Exception):
    """Base of everything `rose` raises on purpose."""


class ConfigError(RoseError):
    """An option, or a combination of options, that cannot work."""


class CheckpointError(RoseError):
    """A checkpoint is missing, damaged, or not what its config says. The text names file and tensor."""


class UnsupportedModel(CheckpointError):
    """The checkpoint is sound, but of an architecture or number format `rose` does not serve."""


class UnsupportedShape(RoseError):
    """A kernel was asked for a shape, dtype or layout outside its contract. The text gives the values."""


class RequestError(RoseError):
    """A request that cannot be served as it stands.

    `param` is the name of the request field at fault and `code` a short machine-readable reason, both as in
    OpenAI's error object; either may be None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ContextLengthExceeded(RequestError):
    """The prompt, with the tokens asked for, does not fit the model's context."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class EngineDead(RoseError):
    """The engine process ended or stopped answering; open requests cannot be finished."""
