"""The tokenizer of `rose-demo`: byte-level BPE, learned from generated text.

Two choices make the tasks easy for a small model. Every digit is a token of its own. And a word is made of the same
tokens with a space before it as without one, except for the commonest whole words: so a name copied from a sentence
into JSON is a copy of token ids. For that the merges are learned on words without their spaces, and the commonest
whole words then get one more merge each, with the space.

    python -m demo.tokenizer --out rose/assets/rose-demo
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from demo.targets import Encoder
from demo.tasks.mixture import random_example
from demo.tasks.words import invented
from rose.chat.tokenizer import Tokenizer

VOCAB_SIZE = 2048
BUNDLED = Path(__file__).parent.parent / "rose" / "assets" / "rose-demo"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SPECIAL_TOKENS = (
    "<|startoftext|>", "<|endoftext|>", "<|reserved_0|>", "<|reserved_1|>", "<|return|>", "<|constrain|>",
    "<|reserved_2|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|reserved_3|>", "<|reserved_4|>",
    "<|reserved_5|>", "<|call|>", "<|endofprompt|>",
)  # fmt: skip
_NUM_SPACED_WORDS = 400
_WORD = r"\p{L}+"
_OTHER = r"\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def _pre_tokenizer(spaced_words: bool) -> pre_tokenizers.PreTokenizer:
    pattern = f"{' ?' if spaced_words else ''}{_WORD}|{_OTHER}"
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _assemble(vocab: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    """A tokenizer of this vocabulary, with the special tokens after it."""
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(spaced_words=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS]
    )
    return tokenizer


def byte_tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer without merges: with it the real renderer gives the text that the real tokenizer is learned from."""
    return _assemble({char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])


def corpus(num_examples: int, seed: int) -> list[str]:
    """The pieces of text, between control tokens, of random examples with their replies."""
    tokenizer = Tokenizer(byte_tokenizer())
    encode = Encoder(tokenizer)
    rng = Random(seed)
    pieces: list[str] = []
    separator = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for _ in range(num_examples):
        encoded = encode(random_example(rng))
        pieces += separator.split(tokenizer.decode(encoded.prompt + encoded.target, keep_special=True))
    # More inventions than the examples hold, so that syllables and not chance words get the tokens.
    pieces += [invented(rng) for _ in range(num_examples * 2)]
    pieces += [invented(rng).capitalize() for _ in range(num_examples)]
    return pieces


def train(num_examples: int = 20_000, seed: int = 0) -> tokenizers.Tokenizer:
    """Learn the tokenizer. The same arguments give the same tokenizer."""
    pieces = corpus(num_examples, seed)
    learned = tokenizers.Tokenizer(models.BPE())
    learned.pre_tokenizer = _pre_tokenizer(spaced_words=False)
    learned.train_from_iterator(
        pieces,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - _NUM_SPACED_WORDS,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    model: dict[str, Any] = json.loads(learned.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    merges = [tuple(merge) for merge in model["merges"]]
    counts = Counter(word for piece in pieces for word in re.findall(r" ([A-Za-z]+)", piece) if word in vocab)
    space = "Ġ"
    for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(vocab) == VOCAB_SIZE - len(SPECIAL_TOKENS):
            break
        if len(word) > 1 or word == "a":
            vocab[space + word] = len(vocab)
            merges.append((space, word))
    return _assemble(vocab, merges)


def save(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    model, settings = (folder / name for name in TOKENIZER_FILES)
    model.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }
    settings.write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    save(train(args.examples, args.seed), args.out)


if __name__ == "__main__":
    main()
