"""`moe_routing` in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor


def moe_routing_reference(router_logits: Tensor, *, experts_per_token: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `op.py`; returns the fields of `Routing` in order."""
    # A stable sort keeps equal logits in order of id, which topk does not promise.
    ordered, ids = router_logits.float().sort(dim=-1, descending=True, stable=True)
    expert_ids = ids[:, :experts_per_token].contiguous()  # [num_tokens, k]
    expert_weights = torch.softmax(ordered[:, :experts_per_token], dim=-1)  # [num_tokens, k] f32
    pair_experts, pair_order = expert_ids.flatten().sort(stable=True)  # [num_tokens * k]
    counts = torch.bincount(pair_experts, minlength=router_logits.shape[1])  # [num_experts]
    expert_offsets = F.pad(counts.cumsum(0), (1, 0))  # [num_experts + 1]
    return expert_ids, expert_weights, pair_order, expert_offsets
