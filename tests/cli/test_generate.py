"""`rose generate`: the rows, and the status it ends with."""

import json
import sys
from pathlib import Path

import pytest

import rose
from rose.cli.main import main

DEMO = Path(rose.__file__).parent / "assets" / "rose-demo"
pytestmark = pytest.mark.skipif(not (DEMO / "config.json").exists(), reason="rose-demo is not there")


def generate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["rose", "generate", "rose-demo", "--max-model-len", "32", *arguments])
    try:
        main()
    except SystemExit as ended:
        return ended.code
    return 0


def test_a_row_that_failed_is_a_status(monkeypatch, capsys, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text("".join(json.dumps({"prompt_token_ids": ids}) + "\n" for ids in ([1, 2], [1] * 40, [3])))
    assert generate(monkeypatch, "--input", str(rows), "--max-tokens", "2") == 1
    out, err = capsys.readouterr()
    written = [json.loads(line) for line in out.splitlines()]
    assert [row["finish_reason"] for row in written] == ["length", "error", "length"]
    assert "40 tokens" in written[1]["error"]
    assert err.splitlines()[-1] == "rose: error: 1 of 3 completions failed; their rows say why"


def test_sound_rows_are_a_success(monkeypatch, capsys) -> None:
    assert generate(monkeypatch, "--prompt", "1 + 1 =", "--max-tokens", "2") == 0
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "length"
