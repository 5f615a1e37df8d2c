import pytest

from rose.chat.conversation import Conversation, Message
from rose.chat.registry import get_format
from rose.errors import ConfigError


def test_takes_a_tokenizer_in_any_form(tmp_path, tiny, tiny_backend):
    tiny_backend.save(str(tmp_path / "tokenizer.json"))
    chat = Conversation(messages=(Message("user", "hi"),))
    prompts = [get_format("harmony", t).render(chat) for t in (tiny, tiny_backend, tmp_path, str(tmp_path))]
    assert all(prompt == prompts[0] for prompt in prompts)


def test_stop_ids_are_those_of_the_checkpoint(tiny):
    stops = get_format("harmony", tiny).stop_token_ids
    assert set(stops) == {tiny.special_id(f"<|{name}|>") for name in ("return", "call", "endoftext")}


def test_an_unknown_name_lists_the_known_ones(tiny):
    with pytest.raises(ConfigError, match=r"'nobody'; known: auto, chatml, harmony"):
        get_format("nobody", tiny)
