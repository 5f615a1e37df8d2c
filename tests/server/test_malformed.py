"""What no client library sends: broken HTTP, broken JSON, bodies that never arrive. Over a socket, byte by byte."""

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from rose.chat.tokenizer import Tokenizer
from tests.fakes import FakeEngine, by_token
from tests.server.live import LiveServer, live_server

CHAT = "/v1/chat/completions"
GENERATING = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}
BODY_TIMEOUT_S = 0.4


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    steps = by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High at 4.<|return|>"))
    with live_server(FakeEngine(lambda _: steps), tokenizer, body_timeout_s=BODY_TIMEOUT_S) as running:
        yield running


@pytest.fixture(autouse=True)
def others_are_served(server: LiveServer) -> Iterator[None]:
    yield
    answer = httpx.post(f"{server.url}{CHAT}", json=GENERATING[CHAT], timeout=10)
    assert answer.json()["choices"][0]["message"]["content"] == "High at 4."
    assert server.engine.num_open == 0


def connect(server: LiveServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def talk(server: LiveServer, *pieces: bytes, pause_s: float = 0.0) -> tuple[int, bytes]:
    """Send pieces of bytes; the status and the body of the answer, when the connection has been closed."""
    with connect(server) as client:
        received = b""
        try:
            for piece in pieces:
                client.sendall(piece)
                time.sleep(pause_s)
            while data := client.recv(65536):
                received += data
        except ConnectionError:  # closed while we sent on
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: rose", "connection: close", *headers, "", ""]).encode()


@pytest.mark.parametrize("path", [*GENERATING, "/tokenize", "/detokenize", "/v1/messages/count_tokens"])
def test_a_body_that_never_arrives_is_a_408(server: LiveServer, path: str) -> None:
    began = time.monotonic()
    status, body = talk(server, head(path, "content-length: 100"), b'{"input": "')
    assert (status, BODY_TIMEOUT_S <= time.monotonic() - began < 20) == (408, True)
    error = json.loads(body)["error"]
    assert "0.4 seconds" in error["message"]
    assert ("code" in error) == (not path.startswith("/v1/messages")), "Anthropic's clients read another shape"


def test_a_body_that_drips_is_a_408(server: LiveServer) -> None:
    drops = [f"1\r\n{char}\r\n".encode() for char in '{"messages": []' * 3]
    status, _ = talk(server, head(CHAT, "transfer-encoding: chunked"), *drops, pause_s=0.05)
    assert status in (408, 0)  # 0: it was still sending when the connection was closed
    assert talk(server, head(CHAT, "content-length: 9", "expect: 100-continue"))[0] in (100, 408)


def test_a_head_that_never_arrives_is_waited_for_no_longer_than_the_next_request(
    monkeypatch, tokenizer: Tokenizer
) -> None:
    monkeypatch.setattr("rose.server.http._KEEP_ALIVE_S", 0.5)
    slow = FakeEngine(lambda _: [1.0, [5]])
    with live_server(slow, tokenizer) as server:
        for pieces in ((), (b"POST /v1/chat", b"/completions HTTP/1.1\r\n", b"x: y\r\n")):
            began = time.monotonic()
            assert talk(server, *pieces, pause_s=0.1) == (0, b"")
            assert 0.4 < time.monotonic() - began < 20
        with connect(server) as client, client.makefile("rb") as answers:
            whole = json.dumps(GENERATING[CHAT]).encode()
            for _ in range(2):  # a request that takes its time, and another on the same connection
                client.sendall(head(CHAT, f"content-length: {len(whole)}").replace(b"connection: close\r\n", b""))
                client.sendall(whole)
                assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
                length = 0
                while (line := answers.readline()) != b"\r\n":
                    name, _, value = line.partition(b":")
                    length = int(value) if name == b"content-length" else length
                answers.read(length)
            client.sendall(b"GET /health HT")
            assert answers.read() == b"", "a head that begins and does not end"


@pytest.mark.parametrize("piece", [b"x: y\r\n" * 10_000, b"y" * 60_000], ids=["many", "long"])
def test_a_head_without_an_end_is_cut_off(server: LiveServer, piece: bytes) -> None:
    began = head("/health", method="GET").removesuffix(b"\r\n")
    for _ in range(2):
        assert talk(server, began, *[piece] * 100, pause_s=0.001)[0] in (400, 0)  # 0: it was still sending then
    with connect(server) as client:  # each of many heads has the whole length
        for _ in range(12):
            client.sendall(b"GET /health HTTP/1.1\r\nhost: rose\r\nx: " + b"y" * 30_000 + b"\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_headers_behind_a_body_are_left_out(server: LiveServer) -> None:
    whole = json.dumps(GENERATING[CHAT]).encode()
    chunks = f"{len(whole):x}\r\n".encode() + whole + b"\r\n0\r\nx-request-id: late\r\n\r\n"
    assert talk(server, head(CHAT, "transfer-encoding: chunked"), chunks)[0] == 200


def test_a_body_in_pieces_is_a_body(server: LiveServer) -> None:
    whole = json.dumps(GENERATING[CHAT]).encode()
    pieces = [whole[i : i + 9] for i in range(0, len(whole), 9)]
    assert talk(server, head(CHAT, f"content-length: {len(whole)}"), *pieces, pause_s=0.01)[0] == 200


def test_a_slow_answer_is_no_slow_body(tokenizer: Tokenizer) -> None:
    steps = [0.5, *by_token(tokenizer.encode_with_special("<|channel|>final<|message|>ok<|return|>"))]
    with live_server(FakeEngine(lambda _: steps), tokenizer, body_timeout_s=0.1) as server:
        for stream in (False, True):
            answer = httpx.post(f"{server.url}{CHAT}", json=GENERATING[CHAT] | {"stream": stream}, timeout=10)
            assert answer.status_code == 200
            assert '"finish_reason":"stop"' in answer.text


@pytest.mark.parametrize(
    "request_bytes",
    [
        head(CHAT, "content-length: -1"),
        head(CHAT, "content-length: 1e3"),
        head(CHAT, "content-length: 99999999999999999999999"),
        head(CHAT, "content-length: 5", "content-length: 6") + b"hello",
        head(CHAT, "transfer-encoding: chunked") + b"zz\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"GET / HTTP/9.9\r\n\r\n",
        head("/", f"x: {'y' * 100_000}", method="GET"),
    ],
)
def test_broken_http_is_a_400(server: LiveServer, request_bytes: bytes) -> None:
    status, _ = talk(server, request_bytes)
    assert 400 <= status < 500


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b'{"input": "\xff\xfe"}', "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"a":' * 100_000, "invalid_json"),
        (b'{"input": ' + b"[" * 500 + b"]" * 500 + b"}", "invalid_json"),
        (b"[]", "invalid_type"),
        (b'"text"', "invalid_type"),
        (b"{} {}", "invalid_json"),
        (b"{'input': 1}", "invalid_json"),
        (b'{"a": 1,}', "invalid_json"),
        (b"\x00", "invalid_json"),
    ],
)
def test_broken_json_is_a_400(server: LiveServer, path: str, body: bytes, code: str) -> None:
    answer = httpx.post(f"{server.url}{path}", content=body, timeout=10)
    assert answer.status_code == 400
    if path != "/v1/messages":
        assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    "field",
    [
        *('"temperature": NaN', '"temperature": Infinity', '"temperature": 1e999', '"top_p": -Infinity'),
        *('"top_k": 1e400', '"seed": ' + "9" * 5000, '"max_tokens": -5', '"max_output_tokens": -1', '"n": 1.5'),
        *('"metadata": {"a": NaN}', '"user": "\\ud800"', '"logit_bias": {"1": NaN}', '"nobody": [NaN, 1e999]'),
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": NaN}, "strict": true}}]',
        '"tools": [{"type": "function", "name": "f", "strict": true, "parameters": {"enum": [Infinity]}}]',
        '"guided_json": {"minimum": NaN}',
        '"stop": ["a", "a"], "stop": []',
        '"stream": false, "stream": false',
    ],
)
def test_numbers_that_are_none_and_keys_that_come_twice(server: LiveServer, path: str, field: str) -> None:
    body = json.dumps(GENERATING[path])[:-1] + f", {field}}}"
    answer = httpx.post(f"{server.url}{path}", content=body, timeout=10)
    assert answer.status_code in (200, 400), answer.text
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a", ""])
def test_the_content_type_does_not_matter(server: LiveServer, kind: str) -> None:
    content = json.dumps(GENERATING[CHAT])
    assert httpx.post(f"{server.url}{CHAT}", content=content, headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize("path", [*GENERATING, "/health", "/v1/models", "/v1/responses/x"])
@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "QUERY", "BREW"])
def test_other_methods_are_a_405(server: LiveServer, path: str, method: str) -> None:
    status, body = talk(server, head(path, method=method))
    assert status in (400, 405)  # 400: not a method that HTTP has
    assert status == 400 or json.loads(body)["error"]


@pytest.mark.parametrize(
    "path", ["/v1/models/%00", "/v1/models/%ff%fe", "/v1/responses/%0a", "/%2e%2e/%2e%2e/etc", "/v1/x" * 2000]
)
def test_odd_paths_are_a_404(server: LiveServer, path: str) -> None:
    assert talk(server, head(path, method="GET"))[0] in (404, 400)
