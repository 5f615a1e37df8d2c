import pytest

from demo.tokenizer import save, train
from rose.chat.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    """A tokenizer learned from few examples."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save(train(num_examples=1500), folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)
