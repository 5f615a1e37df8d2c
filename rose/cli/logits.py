"""`rose logits`: the model's logits for given token ids, to compare with another implementation."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rose.cli.load_progress import load_progress
from rose.cli.places import choose_device
from rose.errors import ConfigError, ContextLengthExceeded, RequestError

if TYPE_CHECKING:
    import numpy as np

    from rose.models.base import CausalLM

# The imports inside the functions keep `rose --help` quick, and a mistake in the input is told before them.

# Rows whose logits are held at a time: with a vocabulary of 200 000 these are 200 MB.
_LOGIT_ROWS = 256


def logits(
    *,
    model: str,
    tokens: Path,
    out: Path,
    dtype: Literal["float32", "bfloat16"] = "float32",
    chunk: int = 2048,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Write the logits after each token to a NumPy file, float32, [number of tokens, vocabulary size].

    Parameters
    ----------
    model
        A folder, a bundled name such as rose-demo, or a Hugging Face repository.
    tokens
        A JSON file: a list of token ids, or an object with such a list under "tokens".
    out
        The .npy file to write.
    dtype
        What to compute in.
    chunk
        Tokens per forward pass; the rest follows through the KV cache.
    device
        Where to compute; auto is the GPU if there is one.

    """
    if chunk < 1:
        raise ConfigError(f"--chunk must be at least 1, got {chunk}")
    token_ids = _read_token_ids(tokens)

    import numpy as np
    import torch

    from rose.weights.loader import load_model

    chosen = choose_device(device)
    with load_progress(model) as progress:
        loaded = load_model(model, device=chosen, dtype=getattr(torch, dtype), progress=progress)
    _check_token_ids(token_ids, loaded)
    try:
        rows = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=(len(token_ids), loaded.vocab_size))
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error}") from error
    _write_logits(loaded, token_ids, rows, chunk)
    rows.flush()


def _write_logits(model: "CausalLM", token_ids: list[int], rows: "np.ndarray[Any, Any]", chunk: int) -> None:
    from rose.layers.single_request import SingleRequestCache

    cache = SingleRequestCache(model.attention_specs, len(token_ids), device=model.device, dtype=model.dtype)
    for start in range(0, len(token_ids), chunk):
        hidden = model.forward(cache.batch(token_ids[start : start + chunk]))
        for offset in range(0, len(hidden), _LOGIT_ROWS):
            part = model.compute_logits(hidden[offset : offset + _LOGIT_ROWS])
            rows[start + offset : start + offset + len(part)] = part.cpu().numpy()


def _read_token_ids(path: Path) -> list[int]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"cannot read token ids from {path}: {error}", param="tokens") from error
    token_ids = value.get("tokens") if isinstance(value, dict) else value
    if not isinstance(token_ids, list) or not token_ids or not all(type(item) is int for item in token_ids):
        raise RequestError(f"{path} must hold a list of one or more integer token ids", param="tokens")
    return token_ids


def _check_token_ids(token_ids: list[int], model: "CausalLM") -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < model.vocab_size:
            message = f"token id {token_id} at {index} is not in the vocabulary, 0 ... {model.vocab_size - 1}"
            raise RequestError(message, param="tokens")
    if len(token_ids) > model.max_position:
        message = f"{len(token_ids)} tokens do not fit the model's context of {model.max_position}"
        raise ContextLengthExceeded(message, param="tokens")
