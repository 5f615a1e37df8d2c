"""`rope_` in plain torch."""

from torch import Tensor


def rope_reference(query: Tensor, key: Tensor, positions: Tensor, table: Tensor, query_scale: float) -> None:
    """See `op.py`."""
    rows = table.index_select(0, positions).unsqueeze(1)  # [num_tokens, 1, head_dim] f32
    cos, sin = rows.chunk(2, dim=-1)
    for x, scale in ((query, query_scale), (key, 1.0)):
        first, second = (x.float() * scale).chunk(2, dim=-1)
        rotated_first = first * cos - second * sin  # both are needed before either half is overwritten
        rotated_second = second * cos + first * sin
        half = x.shape[-1] // 2
        x[..., :half] = rotated_first
        x[..., half:] = rotated_second
