"""Which model family serves a checkpoint. To add a family, write `models/<name>/` and add one line here."""

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from rose.errors import UnsupportedModel
from rose.models.gpt_oss.config import is_original_config
from rose.models.plan import MakePlan, ModelPlan

# `model_type` of a config.json -> the family's `make_plan`, imported when it is asked for.
_FAMILIES = {
    "gpt_oss": "rose.models.gpt_oss.plan",
}


def plan_model(config: Mapping[str, Any], tensor_names: Collection[str], source: str) -> ModelPlan:
    """Find the family of a parsed `config.json` and let it read the rest.

    tensor_names: of the checkpoint. source: the config's path, for messages. Raises UnsupportedModel for an
    architecture that is not served, CheckpointError for a config that its family cannot read.
    """
    model_type = config.get("model_type")
    if is_original_config(config):
        model_type = "gpt_oss"
    home = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if home is None:
        served = ", ".join(sorted(_FAMILIES))
        raise UnsupportedModel(f"{source}: model_type {model_type!r} is not served; served are {served}")
    make_plan: MakePlan = import_module(home).make_plan
    return make_plan(config, tensor_names, source)
