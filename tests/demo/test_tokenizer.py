from random import Random

from demo.targets import Encoder
from demo.tasks.example import Call, Reply
from demo.tasks.mixture import random_example
from demo.tasks.words import invented
from demo.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, train


def test_the_vocabulary_is_full_and_holds_every_control_token(tokenizer):
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert all(tokenizer.special_id(name) is not None for name in SPECIAL_TOKENS)


def test_any_text_survives(tokenizer):
    for text in ("", "naïve 日本 🌹\x00\t\r\n\n  x", "<|start|>", "a  b   c ", "int main() {return 0x1F;}"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_tokens_of_their_own(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("12+345=")] == ["1", "2", "+", "3", "4", "5", "="]


def test_an_unknown_word_is_the_same_tokens_with_and_without_a_space(tokenizer):
    rng = Random(0)
    same = 0
    for _ in range(300):
        word = invented(rng)
        alone, spaced = tokenizer.encode(word), tokenizer.encode(f" {word}")
        same += spaced[1:] == alone
    # The others begin with a common word, as `inora` does.
    assert same > 270


def test_training_the_tokenizer_is_deterministic():
    assert train(num_examples=200).to_str() == train(num_examples=200).to_str()


def test_replies_are_harmony(tokenizer):
    encode = Encoder(tokenizer)

    def written(reply):
        return tokenizer.decode(encode.reply(reply), keep_special=True)

    assert written(Reply("5")) == "<|channel|>final<|message|>5<|return|>"
    assert written(Reply("5", "2+3=5")) == (
        "<|channel|>analysis<|message|>2+3=5<|end|><|start|>assistant<|channel|>final<|message|>5<|return|>"
    )
    assert written(Reply(call=Call("get_tide", {"place": "Oban", "days": 2}))) == (
        '<|channel|>commentary to=functions.get_tide <|constrain|>json<|message|>{"place": "Oban", "days": 2}<|call|>'
    )


def test_prompts_are_what_the_renderer_gives(tokenizer):
    encode, rng = Encoder(tokenizer), Random(3)
    for _ in range(50):
        text = tokenizer.decode(encode(random_example(rng)).prompt, keep_special=True)
        assert text.startswith("<|start|>system<|message|>") and text.endswith("<|start|>assistant")
