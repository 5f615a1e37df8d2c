"""Choose each token's experts, and put the chosen (token, expert) pairs in order of expert.

    expert_ids[t]     = the k experts of largest router_logits[t], best first; equal logits: the lower id first
    expert_weights[t] = softmax(router_logits[t, expert_ids[t]])          over the k chosen, not over all experts
    pair_order        = the pairs t * k + j, sorted by expert, within an expert by pair
    expert_offsets[e] = number of pairs of experts before e; expert e has pair_order[offsets[e] : offsets[e + 1]]

router_logits: [num_tokens, num_experts], contiguous, float32, bfloat16 or float16, with the router's bias. Returns
`Routing`: expert_ids [num_tokens, k] int64, expert_weights [num_tokens, k] float32, pair_order [num_tokens * k] int64,
expert_offsets [num_experts + 1] int64, all contiguous. Softmax is in float32. Nothing is written in place.
Hardware: any. Source: `MLPBlock` in openai/gpt-oss, gpt_oss/torch/model.py; the tie rule is our own, so that every
backend routes alike.
"""

from dataclasses import dataclass

from torch import Tensor

from rose.kernels.contract import FLOATS, require, require_dtype, require_shape
from rose.kernels.moe_routing.reference import moe_routing_reference


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts serve which tokens; fields as in the module's contract."""

    expert_ids: Tensor
    expert_weights: Tensor
    pair_order: Tensor
    expert_offsets: Tensor


def moe_routing(router_logits: Tensor, *, experts_per_token: int) -> Routing:
    """Route every token; see the module's contract. Raises UnsupportedShape."""
    require_shape("moe_routing", "router_logits", router_logits, (None, None))
    require_dtype("moe_routing", "router_logits", router_logits, *FLOATS)
    num_experts = router_logits.shape[1]
    possible = 0 < experts_per_token <= num_experts
    require(possible, "moe_routing", f"cannot choose {experts_per_token} of {num_experts} experts")
    return Routing(*moe_routing_reference(router_logits, experts_per_token=experts_per_token))
