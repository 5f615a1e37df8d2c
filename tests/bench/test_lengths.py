"""Which lengths are measured: all that were asked for, or the defaults that the model has room for."""

import pytest

from rose.bench.decode import longest_request
from rose.bench.lengths import choose_lengths
from rose.bench.results import read_results
from rose.cli.main import app
from rose.errors import ConfigError

DEFAULTS = (100, 200, 400)


def choose(given, max_position):
    return choose_lengths("--context", given, DEFAULTS, max_position=max_position, needed=lambda length: length + 10)


@pytest.mark.parametrize(
    ("max_position", "chosen"),
    [
        (None, DEFAULTS), (410, DEFAULTS), (409, (100, 200)), (210, (100, 200)), (110, (100,)),
        (109, (50,)), (60, (50,)), (59, (25,)), (11, (1,)),
    ],
)  # fmt: skip
def test_defaults_that_the_model_has_no_room_for_are_left_out(max_position, chosen):
    assert choose(None, max_position) == chosen


def test_what_is_left_out_is_one_line(monkeypatch):
    lines = []
    monkeypatch.setattr("rose.bench.lengths.logger.warning", lambda text, *values: lines.append(text % values))
    choose(None, 410)
    assert lines == []
    choose(None, 250)
    assert lines == ["the model has 250 positions, too few for --context 400: measuring 100,200"]


def test_what_was_asked_for_is_measured_or_refused():
    assert choose((7, 3), 17) == (7, 3)
    assert choose((7, 3), None) == (7, 3)
    with pytest.raises(ConfigError, match="--context 8 takes 18 positions in all, and the model has 17"):
        choose((3, 8), 17)
    with pytest.raises(ConfigError, match="10 positions, too few for any --context"):
        choose(None, 10)


@pytest.fixture
def unloadable(monkeypatch):
    def never(*_, **__):
        raise AssertionError("it was loaded")

    monkeypatch.setattr("rose.bench.session.Rig.load", never)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("prefill rose-demo --lengths 100,8192", "--lengths 8192 takes 8193 positions"),
        ("decode rose-demo --context 8192", "--context 8192 takes"),
        ("prefill gpt-oss-20b --load-format dummy --lengths 128K", "--lengths 131072 takes 131073 positions"),
    ],
)
def test_the_option_at_fault_is_named_before_anything_is_loaded(arguments, message, unloadable):
    with pytest.raises(ConfigError, match=message):
        run(*arguments.split())


@pytest.mark.parametrize(
    ("arguments", "max_model_len"),
    [
        ("prefill rose-demo", 4097),
        ("prefill gpt-oss-20b --load-format dummy", 128001),
        ("decode rose-demo --batches 4", longest_request(4096, 4, 32 * 3 + 8 + 4 + 4, 4096)),
        ("decode rose-demo --context 8000 --batches 1,500", 8192),
    ],
)
def test_the_engine_has_room_for_them_and_no_more_than_the_model(arguments, max_model_len, monkeypatch):
    class LoadedError(Exception):
        pass

    def load(config):
        raise LoadedError(config.max_model_len)

    monkeypatch.setattr("rose.bench.session.Rig.load", load)
    with pytest.raises(LoadedError) as loaded:
        run(*arguments.split(), "--no-ceilings", "--device", "cpu")
    assert loaded.value.args == (max_model_len,)


def test_the_commands_measure_without_a_length(tmp_path, monkeypatch):
    monkeypatch.setattr("rose.cli.bench.prefill._LENGTHS", (48, 9000))
    monkeypatch.setattr("rose.cli.bench.decode._CONTEXTS", (48, 9000))
    common = ("--device", "cpu", "--repeats", "1", "--warmup", "0", "--no-ceilings", "--out", str(tmp_path / "rows"))
    run("prefill", "rose-demo", *common)
    run("decode", "rose-demo", "--batches", "1", "--steps", "1", *common)
    rows = read_results([tmp_path / "rows"])
    assert [(row.status, row.point.get("length", row.point.get("context"))) for row in rows] == [("ok", 48)] * 2


def run(*arguments):
    app(["bench", *arguments], exit_on_error=False, result_action="return_value")
