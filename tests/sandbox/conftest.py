"""Fixtures: one sandbox process for tests that leave it alone, one for each test that kills it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentops.sandbox.client import SandboxClient, SandboxLedger
from tests.sandbox.process import Receiver, SandboxProcess


@pytest.fixture(scope="session")
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    process = SandboxProcess(tmp_path_factory.mktemp("sandbox"), "--settle-delay", "0.05")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def sandbox(shared_sandbox: SandboxProcess) -> SandboxProcess:
    """A running sandbox that has seen nothing yet and sends webhooks nowhere."""
    with SandboxLedger(shared_sandbox.url) as ledger:
        ledger.reset()
    return shared_sandbox


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[SandboxProcess]:
    """A running sandbox of the test's own, to kill."""
    process = SandboxProcess(tmp_path / "sandbox", "--settle-delay", "0.05")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def client(sandbox: SandboxProcess) -> Iterator[SandboxClient]:
    with SandboxClient(sandbox.url) as client:
        yield client


@pytest.fixture
def ledger(sandbox: SandboxProcess) -> Iterator[SandboxLedger]:
    with SandboxLedger(sandbox.url) as ledger:
        yield ledger


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()
