"""The tokenizers of the chat tests: tiny ones with control tokens at odd ids, and the real vocabulary."""

import tempfile
from pathlib import Path

import openai_harmony
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

SPECIALS = (
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
    "<|endoftext|>",
)

# The published splitting pattern of o200k, by alternatives.
O200K_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

CORPUS = [
    "You are ChatGPT, a large language model trained by OpenAI. Knowledge cutoff: 2024-06",
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.",
    "High at 4. Low at 10. Need the tide. I will look it up. let me look at this to=functions.tide json {}",
    "assistant user system developer tool functions namespace type any string number boolean",
]


def tiny_tokenizer() -> tokenizers.Tokenizer:
    """A few hundred tokens trained here. Its control tokens sit at ids of their own, out of order and with gaps."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    order = [*SPECIALS[::-1][:5], "<|reserved_1|>", *SPECIALS[::-1][5:], "<|reserved_2|>"]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in order])
    backend.add_tokens([AddedToken("<|note|>", special=False), "tideline"])
    return backend


CHATML_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CHATML_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def chatml_tokenizer(*, has_tags: bool = True) -> tokenizers.Tokenizer:
    """A few hundred tokens with the control tokens of ChatML; has_tags: and of the tags, not flagged special."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CHATML_SPECIALS])
    if has_tags:
        backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in CHATML_TAGS])
    return backend


def harmony_tokenizer() -> tokenizers.Tokenizer:
    """The vocabulary of gpt-oss, taken from the reference library, as a `tokenizers` tokenizer.

    Building it takes seconds, so it is kept in the temporary directory between runs.
    """
    cache = Path(tempfile.gettempdir()) / f"rose-test-o200k-harmony-{tokenizers.__version__}.json"
    if cache.exists():
        return tokenizers.Tokenizer.from_file(str(cache))
    backend = _build_harmony_tokenizer()
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:  # moved into place whole, for parallel runs
        backend.save(str(Path(folder) / cache.name))
        (Path(folder) / cache.name).replace(cache)
    return backend


def _build_harmony_tokenizer() -> tokenizers.Tokenizer:
    oracle = openai_harmony.load_harmony_encoding("HarmonyGptOss")
    specials = {oracle.encode(name, allowed_special="all")[0]: name for name in oracle.special_tokens_set}
    num_text_tokens = 199_998
    assert num_text_tokens <= min(specials)
    ranks = {bytes(oracle._inner.decode_bytes([token])): token for token in range(num_text_tokens)}

    # A BPE vocabulary by rank names no merges; each way to split a token in two known parts is one.
    merges: list[tuple[int, int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                merges.append((rank, ranks[left], ranks[right], left, right))
    merges.sort()

    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}

    def spell(token: bytes) -> str:
        return token.decode("latin-1").translate(alphabet)

    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={spell(token): rank for token, rank in ranks.items()},
            merges=[(spell(left), spell(right)) for *_, left, right in merges],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    # Added tokens are numbered upwards from the vocabulary, and the control tokens leave no gap from there on.
    ordered = [specials.get(token, f"<|unused_{token}|>") for token in range(num_text_tokens, max(specials) + 1)]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ordered])
    assert all(backend.token_to_id(name) == token for token, name in specials.items())
    return backend
