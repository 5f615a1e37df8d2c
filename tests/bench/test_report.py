"""Reports and pictures of canned results."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from rose.bench.plots import write_plots
from rose.bench.report import report
from rose.bench.results import Result, append_results, read_results
from rose.bench.tables import dollars, markdown, three_digits
from rose.cli.main import app
from rose.errors import ConfigError
from tests.bench.rows import all_rows, decode_row, prefill_row

GOLDEN = Path(__file__).parent.parent / "golden" / "bench" / "report.md"


def test_golden_report():
    # After a change that is meant, write what `report` gives to the file, and read the difference.
    assert report(all_rows(), ["decode.png"]) == GOLDEN.read_text(encoding="utf-8")


def test_a_row_that_does_not_count_is_never_the_best():
    text = report(all_rows())
    assert "| TP2 fp8 | **2.00** · $3.34 | invalid | failed |" in text
    assert "5.38 · $0.561" in text  # the only one that counts in its column, so not marked
    assert "**invalid**: the router collapsed" in text
    assert "**failed**: ended by SIGSEGV" in text


def test_the_last_of_equal_points_counts():
    text = report([prefill_row("fp8", 8192, 9.0), prefill_row("fp8", 8192, 0.5)])
    assert "0.500" in text
    assert "9.00" not in text


def test_numbers_as_text():
    assert [three_digits(value) for value in (0.0604, 0.6, 1.0, 4.816, 23.902, 142.3)] == [
        "0.060",
        "0.600",
        "1.00",
        "4.82",
        "23.9",
        "142",
    ]
    assert [dollars(value) for value in (0.00123, 0.0123456, 0.5, 2.5, 1234.5)] == [
        "$0.00123",
        "$0.0123",
        "$0.500",
        "$2.50",
        "$1,234",
    ]


def test_results_survive_the_file(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    append_results(path, all_rows()[:2])
    append_results(path, all_rows()[2:])
    assert read_results([path]) == all_rows()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"kind": "prefill"}',
        '{"kind": "prefill", "configuration": {"modell": "x"}}',
        '{"kind": "ceilings", "configuration": {"model": "x", "modell": "x"}}',
        '{"kind": "ceilings", "configuration": {"model": "x"}, "colour": "red"}',
        '{"kind": "ceilings", "configuration": {"model": 3}}',
        '{"kind": "ceilings", "configuration": {"model": "x"}, "machine": null}',
        '{"kind": "training", "configuration": {"model": "x"}}',
        '{"kind": "prefill", "configuration": {"model": "x"}}',
        '{"kind": "prefill", "configuration": {"model": "x"}, "point": {"length": "8", "batch": 1}}',
        '{"kind": "serve", "configuration": {"model": "x"}, "point": {"input_len": 8}}',
        "\udcff",
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    append_results(path, all_rows()[:1])
    with path.open("a", errors="surrogateescape") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_results([path])
    with pytest.raises(ConfigError, match="cannot read"):
        read_results([tmp_path / "nothing"])


@pytest.mark.parametrize("torn", [b"{", b'{"kind": "decode", "lab', b'"label": "caf\xc3', b"12, "])
def test_an_unfinished_last_line_does_not_count(tmp_path, torn):
    path = tmp_path / "rows.jsonl"
    first, second = all_rows()[:2]
    append_results(path, [first])
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert read_results([path]) == [first]
    append_results(path, [second])
    assert read_results([path]) == [first, second]
    path.write_bytes(whole[:-1])  # a whole row with no end of line, as an editor may leave it
    append_results(path, [second])
    assert read_results([path]) == [first, second]


def test_a_row_may_hold_any_character(tmp_path):
    path = tmp_path / "rows.jsonl"
    odd = dataclasses.replace(all_rows()[0], reason="one\u2028two\x85three\nfour | five", status="failed")
    append_results(path, [odd])
    assert read_results([path]) == [odd]
    assert "one two three four | five" in report([odd])
    assert markdown(["a|b"], [["c\nd|e"]]) == "| a\\|b |\n| --- |\n| c d\\|e |"


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "rows.jsonl"):
        with pytest.raises(ConfigError, match="cannot write results to"):
            append_results(path, [])


def test_nothing_to_report(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_results(path, [])
    with pytest.raises(ConfigError, match="there are no rows in"):
        app(["bench", "report", str(path)], result_action="return_value")


def test_names_of_configurations():
    def name(**fields):
        return Result.from_json(prefill_row("auto", 1, 1.0).to_json()).configuration.__class__(model="m", **fields).name

    assert name() == "TP1"
    assert name(experts="mxfp4", dense="fp8", dtype="bfloat16") == "TP1 mxfp4 dense fp8 bfloat16"
    assert name(tensor_parallel_size=2, data_parallel_size=4, expert_parallel=True) == "TP2 DP4 EP"
    assert name(max_num_batched_tokens=8192, block_size=64) == "TP1 step 8192 block 64"
    assert name(tensor_parallel_size=2, label="vLLM 0.33") == "vLLM 0.33"


def test_the_report_command_draws(tmp_path, capsys):
    rows = [*all_rows(), decode_row("mxfp4", 8, 5.0)]
    append_results(tmp_path / "rows.jsonl", rows)
    app(["bench", "report", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out")], result_action="return_value")
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "report.md")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    for name in ("decode-gpt-oss-20b-8192-nvidia-h200", "prefill-gpt-oss-20b-1-nvidia-h200"):
        assert f"]({name}.png)" in text
        assert png_size(tmp_path / "out" / f"{name}.png") == (1200, 750)
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text(encoding="utf-8")


def test_pictures_are_the_same_each_time(tmp_path):
    rows = [prefill_row("mxfp4", 8192, 0.1), prefill_row("fp8", 8192, 0.2)]
    first, second = (write_plots(rows, tmp_path / name)[0].with_suffix(".svg").read_bytes() for name in "ab")
    assert first == second


def test_no_pictures_of_nothing(tmp_path):
    assert write_plots([row for row in all_rows() if not row.is_quotable], tmp_path) == []


def test_the_report_command_needs_files():
    with pytest.raises(ConfigError, match="one or more files"):
        app(["bench", "report"], result_action="return_value")


def test_reports_need_no_gpu_libraries():
    code = "import sys, rose.bench.grid, rose.bench.results; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def png_size(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")
