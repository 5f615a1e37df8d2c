"""How long a context a model has, as its config tells before any weight is read."""

from rose.engine.config import EngineConfig
from rose.models.registry import plan_model
from rose.weights.checkpoint import Checkpoint
from rose.weights.resolve import resolve_checkpoint
from rose.weights.synthetic import synthetic_source


def check_length(config: EngineConfig) -> None:
    """Raise `ConfigError`, before minutes of loading, if a request may be longer than the model allows."""
    if config.max_model_len is None:
        return
    max_position = known_max_position(config.model, config.load_format)
    if max_position is not None:
        config.check_length(max_position)


def known_max_position(model: str, load_format: str) -> int | None:
    """Positions of the model that `EngineConfig` names so; None if only its loader knows.

    Opens the checkpoint, which reads headers. Raises CheckpointError, UnsupportedModel.
    """
    if load_format not in ("auto", "dummy"):
        return None
    source = synthetic_source(model) if load_format == "dummy" else Checkpoint(resolve_checkpoint(model))
    config = plan_model(source.config, source.tensors.keys(), str(source.config_path)).config
    positions: int | None = getattr(config, "max_position", None)
    return positions
