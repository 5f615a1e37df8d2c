"""The measurement of the frontend: that it counts every event, of each kind of server."""

import pytest

from rose.bench.frontend import measure, measure_bare


@pytest.mark.parametrize("api", ["chat", "responses", "completions"])
def test_an_event_for_every_token(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.bench.frontend._LEAST_EVENTS", 1)
    (point,) = measure(api, [3], num_tokens=20, step_s=0.002)
    assert (point.api, point.num_streams) == (api, 3)
    # Beside a token's, a stream has events of its beginning and its end.
    assert 3 * 20 <= point.num_events <= 3 * (20 + 12)
    assert point.us_per_event >= 0


def test_the_bare_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.bench.frontend._LEAST_EVENTS", 1)
    (point,) = measure_bare([2], num_tokens=20, step_s=0.002)
    assert point.num_events == 40
