"""`rose`: serve OpenAI's gpt-oss models on NVIDIA Hopper GPUs.

The names below are the public Python surface. They are imported on first use, so `import rose` costs
nothing and brings no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rose.engine.config import EngineConfig
    from rose.engine.sampling_params import SamplingParams
    from rose.errors import RoseError
    from rose.llm import LLM

__version__ = "0.1.0"

__all__ = ["LLM", "EngineConfig", "RoseError", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "rose.llm",
    "EngineConfig": "rose.engine.config",
    "RoseError": "rose.errors",
    "SamplingParams": "rose.engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rose' has no attribute {name!r}")
