"""Load generators: their figures, and the answers that they got meanwhile."""

import json
from pathlib import Path

import httpx
import pytest

import rose
from tests.clients.conftest import KEY, installed, run
from tests.clients.environments import python_environment

pytestmark = pytest.mark.timeout(1500)

TOKENIZER = Path(rose.__file__).parent / "assets" / "rose-demo"
SUMS = {f"What is {120 + 7 * i} + {385 + i}?": f"{120 + 7 * i} + {385 + i} = {505 + 8 * i}" for i in range(8)}


def questions(file: Path, column: str) -> str:
    """Write the sums as JSON lines, and give the file's name."""
    file.write_text("".join(json.dumps({column: question}) + "\n" for question in SUMS))
    return file.name


def generated_tokens(url: str) -> float:
    """How many tokens the server has generated so far, by its own count."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("rose:generation_tokens_total"))


def test_guidellm(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "guidellm", "torch==2.13.0", "guidellm==0.8.1")
    backend = {
        "kind": "openai_http",
        "target": demo,
        "model": "rose-demo",
        "api_key": KEY,
        "extras": {"body": {"temperature": 0}},
    }
    before = generated_tokens(demo)
    run(
        [
            *(bin_folder / "guidellm", "run", "--disable-console-interactive"),
            *("--backend", json.dumps(backend), "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
            *("--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={len(SUMS)}"),
            *("--data", f"kind=json_file,path={questions(tmp_path / 'sums.jsonl', 'prompt')}"),
            *("--output", "kind=json,path=out.json"),
        ],
        cwd=tmp_path,
        timeout_s=300,
        HF_HUB_OFFLINE="1",
    )
    [benchmark] = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert benchmark["metrics"]["request_totals"] == {"successful": 8, "errored": 0, "incomplete": 0, "total": 8}
    requests = benchmark["requests"]["successful"]
    messages = [json.loads(request["request_args"])["body"]["messages"] for request in requests]
    asked = [message["content"][0]["text"] for [message] in messages]
    assert dict(zip(asked, (request["output"] for request in requests), strict=True)) == SUMS
    assert sum(request["output_tokens"] for request in requests) == generated_tokens(demo) - before
    assert all(request["time_to_first_token_ms"] > 0 for request in requests)


def test_aiperf(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "aiperf", "aiperf==0.13.0")
    before = generated_tokens(demo)
    run(
        [
            *(bin_folder / "aiperf", "profile", "-m", "rose-demo", "--url", demo, "--api-key", KEY),
            *("--endpoint-type", "chat", "--streaming", "--extra-inputs", "temperature:0"),
            *("--tokenizer", str(TOKENIZER), "--use-server-token-count"),
            *("--input-file", questions(tmp_path / "sums.jsonl", "text"), "--custom-dataset-type", "single_turn"),
            *("--request-count", str(len(SUMS)), "--concurrency", "2"),
            *("--artifact-dir", "out", "--export-level", "raw", "--ui-type", "none"),
        ],
        cwd=tmp_path,
        timeout_s=300,
    )
    figures = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert (figures["request_count"]["avg"], figures["error_summary"]) == (len(SUMS), [])
    assert figures["total_osl"]["avg"] == generated_tokens(demo) - before
    assert figures["time_to_first_token"]["min"] > 0
    lines = (tmp_path / "out" / "profile_export_raw.jsonl").read_text().splitlines()
    answers = [answer(json.loads(line)["responses"]) for line in lines]
    assert sorted(answers) == sorted(SUMS.values())
    scraped = (tmp_path / "out" / "server_metrics_export.json").read_text()
    assert "rose:generation_tokens" in scraped, "it reads the server's metrics, too"


def answer(responses: list[dict[str, list[dict[str, str]]]]) -> str:
    """The content of a recorded stream."""
    events = [packet["value"] for response in responses for packet in response["packets"]]
    choices = [choice for event in events if event != "[DONE]" for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
