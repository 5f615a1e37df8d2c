"""The sizes of a model that decide what a step moves and computes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A gpt-oss-like transformer, by its sizes.

    layer_windows: for each layer its sliding window, which counts the current token, or None for full attention.
    intermediate_size: of one expert.
    """

    vocab_size: int
    hidden_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    layer_windows: tuple[int | None, ...]
    num_experts: int
    experts_per_token: int
    intermediate_size: int

    @property
    def num_layers(self) -> int:
        """Number of transformer blocks."""
        return len(self.layer_windows)

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's query, key, value and output projections, without biases."""
        q_rows, kv_rows = self.num_q_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return (2 * q_rows + 2 * kv_rows) * self.hidden_size

    @property
    def expert_weights(self) -> int:
        """Weights of one expert: gate, up and down, without biases."""
        return 3 * self.intermediate_size * self.hidden_size

    @property
    def router_weights(self) -> int:
        """Weights of one layer's router."""
        return self.num_experts * self.hidden_size

    @property
    def unembedding_weights(self) -> int:
        """Weights of the last projection, to logits."""
        return self.vocab_size * self.hidden_size


def alternating_windows(num_layers: int, window: int) -> tuple[int | None, ...]:
    """Even layers slide, odd ones see everything, as in the published models."""
    return tuple(window if layer % 2 == 0 else None for layer in range(num_layers))


def published_shape(num_layers: int, num_experts: int) -> ModelShape:
    """The published gpt-oss models differ in these two numbers only (model card, arXiv 2508.10925, table 1)."""
    return ModelShape(
        vocab_size=201088,
        hidden_size=2880,
        num_q_heads=64,
        num_kv_heads=8,
        head_dim=64,
        layer_windows=alternating_windows(num_layers, 128),
        num_experts=num_experts,
        experts_per_token=4,
        intermediate_size=2880,
    )


GPT_OSS_20B = published_shape(num_layers=24, num_experts=32)
GPT_OSS_120B = published_shape(num_layers=36, num_experts=128)


def visible_pairs(query_len: int, kv_len: int, window: int | None) -> int:
    """(query, key) pairs of causal attention, for the last `query_len` of `kv_len` positions."""
    first = kv_len - query_len
    if window is None:
        return _triangle(kv_len) - _triangle(first)
    return _windowed(kv_len, window) - _windowed(first, window)


def visible_tokens(query_len: int, kv_len: int, window: int | None) -> int:
    """Positions that at least one of the queries sees: the keys and values that must be read."""
    return kv_len if window is None else min(kv_len, query_len + window - 1)


def experts_touched(num_experts: int, experts_per_token: int, num_tokens: float) -> float:
    """How many experts `num_tokens` reach, on average, if each draws its own at random: E (1 - (1 - k/E)^n)."""
    missed: float = (1.0 - experts_per_token / num_experts) ** num_tokens
    return num_experts * (1.0 - missed)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _windowed(n: int, window: int) -> int:
    """Pairs of the first n positions when each sees at most `window`."""
    if n <= window:
        return _triangle(n)
    return _triangle(window) + (n - window) * window
