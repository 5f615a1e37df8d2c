import openai_harmony
import pytest
import tokenizers

from rose.chat.harmony.format import HarmonyFormat
from rose.chat.tokenizer import Tokenizer, as_tokenizer
from tests.chat import tokenizers_for_tests


@pytest.fixture(scope="session")
def tiny_backend() -> tokenizers.Tokenizer:
    return tokenizers_for_tests.tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny(tiny_backend) -> Tokenizer:
    return as_tokenizer(tiny_backend)


@pytest.fixture(scope="session")
def o200k() -> Tokenizer:
    return as_tokenizer(tokenizers_for_tests.harmony_tokenizer())


@pytest.fixture(scope="session")
def oracle() -> openai_harmony.HarmonyEncoding:
    return openai_harmony.load_harmony_encoding("HarmonyGptOss")


@pytest.fixture(scope="session")
def harmony(o200k) -> HarmonyFormat:
    return HarmonyFormat(o200k)


@pytest.fixture(scope="session", params=["tiny", "o200k"])
def tokenizer(request) -> Tokenizer:
    """Both tokenizers: what holds for one must hold for the other."""
    return request.getfixturevalue(request.param)
