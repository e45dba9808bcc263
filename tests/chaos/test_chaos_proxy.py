"""The proxy in front of PostgreSQL: what it lets through, and what it does not."""

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentops.chaos.proxy import Proxy
from tests.harness.waiting import wait_until

#: Seconds in which nothing must arrive, and in which something must.
NOTHING_S, SOMETHING_S = 0.2, 10


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "up"
    with Server(str(path), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield path
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(tmp_path: Path, upstream: Path) -> Iterator[Proxy]:
    made = Proxy(tmp_path / "in", upstream)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(tmp_path: Path, proxy: Proxy) -> Iterator[socket.socket]:
    with connected(tmp_path) as made:
        assert said(made, b"hello") == b"hello"
        yield made


def connected(folder: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(SOMETHING_S)
    made.connect(str(folder / "in"))
    return made


def said(to: socket.socket, what: bytes) -> bytes:
    """What comes back."""
    to.sendall(what)
    return received(to, len(what))


def received(by: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := by.recv(65536)):
        data += piece
    return data


def is_silent(one: socket.socket) -> bool:
    return not select.select([one], [], [], NOTHING_S)[0]


def test_bytes_pass_in_both_directions(client: socket.socket):
    large = bytes(range(256)) * 4000
    sender = threading.Thread(target=client.sendall, args=(large,))
    sender.start()
    assert received(client, len(large)) == large
    sender.join()


def test_a_cut_connection_is_closed_and_the_next_one_works(
    client: socket.socket, proxy: Proxy, tmp_path: Path
):
    assert proxy.cut(1.0, 0.5) == 1
    assert client.recv(1) == b""
    with connected(tmp_path) as another:
        assert said(another, b"again") == b"again"


def test_nothing_passes_while_it_hangs_and_everything_afterwards_in_order(
    client: socket.socket, proxy: Proxy
):
    proxy.hang(60)
    client.sendall(b"one ")
    client.sendall(b"two")
    assert is_silent(client)
    proxy.hang(0)
    assert received(client, 7) == b"one two"


def test_what_is_late_arrives_in_order(client: socket.socket, proxy: Proxy):
    proxy.delay(0.15)
    client.sendall(b"late ")
    assert is_silent(client)
    proxy.delay(0)
    client.sendall(b"early")
    assert received(client, 10) == b"late early"


def test_a_server_that_is_down_is_refused_at_once(tmp_path: Path):
    proxy = Proxy(tmp_path / "in", tmp_path / "nobody")
    proxy.start()
    with connected(tmp_path) as client:
        assert client.recv(1) == b""
    wait_until(lambda: proxy.connections == 0, 5, "the link is gone")
    proxy.stop()


def test_the_end_of_one_side_is_told_to_the_other(client: socket.socket, proxy: Proxy):
    client.close()
    wait_until(lambda: proxy.connections == 0, 5, "the link is gone")
