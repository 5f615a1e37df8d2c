"""A context longer than the model's is refused before its weights are read."""

from pathlib import Path

import pytest

from rose import LLM
from rose.engine.worker.positions import known_max_position
from rose.errors import ConfigError
from tests.checkpoints import TinyShape, write_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", TinyShape())


def test_it_is_known_without_a_model(folder: Path) -> None:
    assert known_max_position("gpt-oss-20b", "dummy") == known_max_position("openai/gpt-oss-120b", "dummy") == 131072
    assert known_max_position("rose-demo", "auto") == 8192
    assert known_max_position(str(folder), "dummy") == known_max_position(str(folder), "auto")
    assert known_max_position("nothing", "package.module:function") is None


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_context_that_is_too_long(load_format: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was loaded")

    for name in ("load_model", "load_dummy"):
        monkeypatch.setattr(f"rose.engine.worker.worker.{name}", never)
    longest = known_max_position(str(folder), load_format)
    assert longest is not None
    too_long = f"max_model_len {longest + 1} is longer than the model's {longest} positions"
    with pytest.raises(ConfigError, match=too_long):
        LLM(str(folder), device="cpu", load_format=load_format, max_model_len=longest + 1)
    with pytest.raises(AssertionError, match="it was loaded"):
        LLM(str(folder), device="cpu", load_format=load_format, max_model_len=longest)
