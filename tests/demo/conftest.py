"""The sample workflows' world: a sandbox process, a console that takes its webhooks, a worker."""

from collections.abc import Iterator

import pytest
from pytest_django.live_server_helper import LiveServer

from agentops.sandbox.client import SandboxLedger
from runs.engine.worker import RunWorker
from tests.runs.engine.conftest import quick, running_worker
from tests.sandbox.conftest import ledger, sandbox, shared_sandbox
from tests.sandbox.process import SECRET, SandboxProcess

__all__ = ["ledger", "quick", "sandbox", "shared_sandbox"]


@pytest.fixture
def world(
    transactional_db: None,
    settings: object,
    sandbox: SandboxProcess,
    ledger: SandboxLedger,
    live_server: LiveServer,
) -> SandboxLedger:
    """The sandbox as the tools reach it; its webhooks arrive at the console, and it behaves unless told otherwise."""
    settings.AGENTOPS_SANDBOX_URL = sandbox.url  # type: ignore[attr-defined]
    settings.AGENTOPS_SMTP_PORT = sandbox.smtp_port  # type: ignore[attr-defined]
    settings.AGENTOPS_WEBHOOK_SECRET = SECRET  # type: ignore[attr-defined]
    ledger.send_webhooks_to(f"{live_server.url}/webhooks/sandbox")
    ledger.fault_rates({}, endpoint="GET /pages")
    return ledger


@pytest.fixture
def worker(world: SandboxLedger, quick: None) -> Iterator[RunWorker]:
    with running_worker() as started:
        yield started
