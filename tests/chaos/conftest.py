"""Real clusters with short leases on the test's database, and a sandbox whose ledger is the judge."""

from collections.abc import Mapping

import pytest

from tests.harness.processes import Child, Processes, RunningSandbox

#: Seconds; short, so that take-over takes tests no longer than it must.
QUICK = {
    "AGENTOPS_LEASE_SECONDS": "2",
    "AGENTOPS_BEAT_SECONDS": "0.4",
    "AGENTOPS_SEND_MARGIN_SECONDS": "0.6",
    "AGENTOPS_POLL_SECONDS": "0.1",
    "AGENTOPS_APPS": "tests.chaos.app",
}


@pytest.fixture
def sandbox(processes: Processes) -> RunningSandbox:
    return processes.sandbox()


class Clusters:
    def __init__(self, processes: Processes, sandbox: RunningSandbox) -> None:
        self.processes, self.sandbox = processes, sandbox

    def start(self, *arguments: str, workers: int = 1, env: Mapping[str, str] | None = None) -> Child:
        surroundings = QUICK | {"AGENTOPS_SANDBOX_URL": self.sandbox.url} | dict(env or {})
        return self.processes.worker(*arguments, processes=workers, env=surroundings)


@pytest.fixture
def clusters(processes: Processes, sandbox: RunningSandbox) -> Clusters:
    return Clusters(processes, sandbox)
