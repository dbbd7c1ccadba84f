"""What the server refuses: other hosts, other sites, addresses too long; and clients that leave."""

from __future__ import annotations

import asyncio

import pytest
from fastapi.testclient import TestClient

from forescale.errors import SpecError
from forescale.web.app import create_app
from forescale.web.guard import LONGEST_ADDRESS, SECURITY, allowed_host, host_name

SCRIPT = "/static/page.js"


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app(hosts=("gpu-login.example.org",)))


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("LocalHost:8000", "localhost"),
        ("localhost.", "localhost"),
        ("127.0.0.1:8000", "127.0.0.1"),
        ("[::1]:8000", "::1"),
        ("::1", "::1"),
        ("[::ffff:10.0.0.1]", "10.0.0.1"),
        ("", ""),
        ("localhost@evil.example", ""),
        ("localhost/..", ""),
        ("localhost:x", ""),
        ("local host", ""),
        ("[localhost]", ""),
        ("http://localhost", ""),
    ],
)
def test_the_host_of_a_header(header, name):
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("gpu-login.example.org:8000", 200),
        ("testserver", 200),  # the address at which the test client's requests arrive
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("", 400),
    ],
)
def test_only_known_hosts_are_answered(client, host, status):
    answer = client.get(SCRIPT, headers={"host": host})
    assert answer.status_code == status
    assert SECURITY.items() <= {(name, answer.headers[name]) for name in SECURITY}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 422),
        ("http://localhost:8000", 422),
        ("http://evil.example", 403),
        ("http://localhost:9000", 403),
        ("http://localhost", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_pages_of_this_server_may_post(client, origin, status):
    headers = {"host": "localhost:8000"} | ({} if origin is None else {"origin": origin})
    assert client.post("/read?name=a.txt", content="hello", headers=headers).status_code == status


@pytest.mark.parametrize("path", [f"/?config={'x' * LONGEST_ADDRESS}", f"/{'x' * LONGEST_ADDRESS}"])
def test_too_long_an_address_is_refused(client, path):
    assert client.get(path).status_code == 414


def test_a_client_that_leaves_while_it_sends_raises_nothing():
    sent = []
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/read", "raw_path": b"/read",
        "query_string": b"name=a", "headers": [(b"host", b"localhost")], "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(create_app()(scope, receive, send))
    assert sent == []


def test_a_host_that_is_allowed_is_named_alone():
    assert allowed_host("GPU-login") == "gpu-login"
    assert allowed_host("2001:db8::1") == "2001:db8::1"
    for text in ("http://gpu-login", "gpu-login:8000", "*", "*.example.org", "", "a b", "[::1]:8000"):
        with pytest.raises(SpecError):
            allowed_host(text)
