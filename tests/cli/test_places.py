"""Addresses of servers, and names for folders."""

import pytest

from rose.cli.main import app
from rose.cli.places import api_url
from rose.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8123", "http://127.0.0.1:8123/v1"),
        ("http://127.0.0.1:8123/", "http://127.0.0.1:8123/v1"),
        ("http://127.0.0.1:8123/v1", "http://127.0.0.1:8123/v1"),
        ("http://127.0.0.1:8123/v1/", "http://127.0.0.1:8123/v1"),
        ("https://gate.example/openai/v3/", "https://gate.example/openai/v3"),
        ("http://[::1]:80", "http://[::1]:80/v1"),
    ],
)
def test_an_address_without_a_path_means_v1(given: str, url: str) -> None:
    assert api_url(given) == url


@pytest.mark.parametrize("given", ["", "localhost:8000", "127.0.0.1:8000", "ftp://a", "http://", "http://a:b"])
def test_what_is_no_address_names_the_option(given: str) -> None:
    with pytest.raises(ConfigError, match=r"^--base-url"):
        api_url(given)


@pytest.mark.parametrize("command", ["convert", "synth"])
def test_a_bundled_name_is_none_for_a_folder_to_be_made(command: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="rose-demo is the name of a bundled model"):
        app([command, "rose-demo", "rose-demo"], exit_on_error=False)
    assert not list(tmp_path.iterdir())
