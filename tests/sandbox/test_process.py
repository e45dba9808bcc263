"""`manage.py sandbox` as a process: start, stop, death, and the sentences it refuses with."""

import json
import signal
import socket
import threading
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path

import httpx
import pytest
from django.core.management import CommandError, call_command

from agentops.sandbox.__main__ import main
from agentops.sandbox.client import SandboxClient, SandboxLedger
from tests.harness.waiting import wait_until
from tests.sandbox.process import SandboxProcess


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Starts a sandbox that cannot start and returns what it says, which must be one line."""

    def start(*options: str) -> str:
        assert main(["--port", "0", "--smtp-port", "0", *options]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        return said.err

    return start


def test_a_killed_sandbox_remembers_the_work_that_it_never_answered(mortal: SandboxProcess) -> None:
    def refund_and_hear_nothing() -> None:
        with SandboxClient(mortal.url, timeout_s=30) as client, pytest.raises(httpx.TransportError):
            client.refund("1042", Decimal(7), key="k-1", fault="timeout_after")
        silent.set()

    silent = threading.Event()
    caller = threading.Thread(target=refund_and_hear_nothing)
    caller.start()
    with SandboxLedger(mortal.url) as ledger:
        wait_until(lambda: ledger.count(key="k-1"), 10, "the refund is in the ledger")
    mortal.kill()
    caller.join(10)
    assert silent.is_set()
    mortal.start()
    with SandboxClient(mortal.url) as client, SandboxLedger(mortal.url) as ledger:
        found = client.find_refunds(key="k-1")[0]
        assert client.refund("1042", Decimal(7), key="k-1")["id"] == found["id"]
        assert ledger.count(kind="refund") == 1


def test_every_answered_refund_survives_kills_in_the_middle_of_traffic(mortal: SandboxProcess) -> None:
    answered: set[str] = set()
    stop = threading.Event()

    def refund(client: SandboxClient, key: str) -> str:
        while True:
            try:
                return str(client.refund("1", Decimal(1), key=key)["id"])
            except httpx.TransportError:
                continue  # dead at the moment: the same key again

    def traffic(worker: int) -> None:
        with SandboxClient(mortal.url, timeout_s=5) as client:
            for number in count():
                answered.add(refund(client, f"{worker}-{number}"))
                if stop.is_set():
                    return

    def answered_since(before: int) -> bool:
        return len(answered) > before + 20

    workers = [threading.Thread(target=traffic, args=(worker,), daemon=True) for worker in range(4)]
    for worker in workers:
        worker.start()
    for _ in range(3):
        before = len(answered)
        wait_until(partial(answered_since, before), 20, "refunds are answered")
        mortal.kill()
        mortal.start()
    stop.set()
    for worker in workers:
        worker.join(20)
    with SandboxLedger(mortal.url) as ledger:
        assert {entry.answer["id"] for entry in ledger.entries(kind="refund")} == answered
        assert ledger.summary().repeated == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_while_a_request_hangs(mortal: SandboxProcess, number: signal.Signals) -> None:
    with socket.create_connection(("127.0.0.1", mortal.port)) as connection:
        connection.sendall(
            b"GET /orders/1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Sandbox-Fault: timeout_before\r\n\r\n"
        )
        with SandboxLedger(mortal.url) as ledger:
            wait_until(lambda: ledger.requests(), 10, "the request arrived")
        assert mortal.end(number) == 0
        connection.settimeout(5)
        assert connection.recv(1) == b""


def test_a_taken_port_is_one_sentence(
    refusal: Callable[..., str], sandbox: SandboxProcess, tmp_path: Path
) -> None:
    assert f"Port {sandbox.port} on 127.0.0.1 is taken" in refusal(
        "--data", str(tmp_path), "--port", str(sandbox.port)
    )
    smtp = str(sandbox.smtp_port)
    assert f"Port {smtp} on 127.0.0.1 is taken" in refusal("--data", str(tmp_path), "--smtp-port", smtp)


def test_two_sandboxes_never_share_a_ledger(refusal: Callable[..., str], sandbox: SandboxProcess) -> None:
    assert "Another sandbox already uses" in refusal("--data", str(sandbox.data))


def test_a_folder_that_cannot_be_written_is_one_sentence(refusal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "choose a folder with --data" in refusal("--data", str(tmp_path / "file" / "ledger"))
    (tmp_path / "ledger.sqlite3").write_text("no database, but long enough to be looked at" * 50)
    assert "cannot be used" in refusal("--data", str(tmp_path))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com", "::", ""])
def test_it_listens_on_this_machine_only(refusal: Callable[..., str], tmp_path: Path, host: str) -> None:
    assert "this machine only" in refusal("--data", str(tmp_path), "--host", host)


def test_webhook_options_that_cannot_work_are_refused(
    refusal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTOPS_WEBHOOK_SECRET", raising=False)
    folder = ("--data", str(tmp_path))
    assert "need a secret" in refusal(*folder, "--webhook-url", "http://127.0.0.1:1/")
    assert "on this machine only" in refusal(*folder, "--webhook-url", "http://example.com/")
    assert "must be base64" in refusal(*folder, "--webhook-secret", "whsec_a")
    monkeypatch.setenv("AGENTOPS_WEBHOOK_SECRET_FILE", str(tmp_path / "missing"))
    assert "cannot be read" in refusal(*folder)


def test_faults_from_the_command_line_are_planned(tmp_path: Path) -> None:
    process = SandboxProcess(tmp_path, "--faults", json.dumps({"503": 1, "endpoint": "GET /orders"}))
    process.start()
    try:
        assert httpx.get(f"{process.url}/orders/1").status_code == 503
    finally:
        process.stop()


def test_the_management_command_says_the_same(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="this machine only"):
        call_command("sandbox", "--host", "0.0.0.0", "--data", str(tmp_path), stdout=StringIO())
