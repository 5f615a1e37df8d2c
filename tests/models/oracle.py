"""An independent gpt-oss: the implementation of `transformers`, in float32, with eager attention."""

import torch
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM

from tests.checkpoints import TinyShape, expand_experts, hugging_face_config, random_weights


def make_oracle(shape: TinyShape, seed: int = 0) -> GptOssForCausalLM:
    config = hugging_face_config(shape)
    del config["quantization_config"]
    model = GptOssForCausalLM(GptOssConfig.from_dict(config)).float().eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    weights = {name: tensor.float() for name, tensor in expand_experts(random_weights(shape, seed)).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if shape.tie_word_embeddings else [])
    return model


@torch.no_grad()
def oracle_logits(model: GptOssForCausalLM, token_ids: list[int]) -> Tensor:
    """[num_tokens, vocab_size] float32."""
    return model(torch.tensor([token_ids])).logits[0]
