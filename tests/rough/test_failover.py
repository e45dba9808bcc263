"""Fail-over: the primary dies, its standby is read-only for longer than a lease, and is then promoted."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from django.conf import settings

from agentops.sandbox.client import SandboxLedger
from tests.harness.processes import Processes
from tests.harness.server import ThrowAwayServer
from tests.harness.standby import Address, CopiedServer
from tests.rough.conftest import Cluster, cookies

pytestmark = pytest.mark.django_db(transaction=True)

RUNS = 20


def database() -> str:
    """Name of the test database, known only when it was made."""
    return str(settings.DATABASES["default"]["NAME"])


def of(server: ThrowAwayServer, question: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url(database()), autocommit=True) as raw:
        return raw.execute(question).fetchall()


class Pair:
    """A primary that confirms nothing which its standby does not have, and the address that clients use."""

    def __init__(self, folder: Path, source: ThrowAwayServer) -> None:
        # A copy of the tests' server, which has to outlive this test.
        self.primary = CopiedServer(folder / "primary", source)
        self.primary.start()
        self.standby = CopiedServer(folder / "standby", self.primary, follow=True)
        self.standby.start()
        with psycopg.connect(self.primary.url("postgres"), autocommit=True) as raw:
            raw.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            raw.execute("SELECT pg_reload_conf()")
        self.address = Address(folder / "address", self.primary)

    def fail_over(self) -> None:
        self.primary.stop("immediate")
        self.address.lead_to(self.standby)

    def remove(self) -> None:
        self.primary.remove()
        self.standby.remove()


@pytest.fixture
def pair(postgres_server: ThrowAwayServer) -> Iterator[Pair]:
    # Beside the tests' server: the paths of its sockets are short enough.
    folder = Path(os.environ["AGENTOPS_TEST_FOLDER"]) / "pair"
    folder.mkdir()
    pair = Pair(folder, postgres_server)
    yield pair
    pair.remove()
    (folder / "address").unlink()
    folder.rmdir()


@pytest.fixture
def signed_in(transactional_db: None) -> dict[str, str]:
    """Made before the servers are copied."""
    return cookies()


def test_a_fail_over_loses_nothing_repeats_nothing_and_takes_nobody_for_dead(
    signed_in: dict[str, str],
    pair: Pair,
    cluster: Cluster,
    processes: Processes,
    ledger: SandboxLedger,
    tmp_path: Path,
) -> None:
    surroundings = cluster.environment(pair.address.url("agentops", database()))
    lines = tmp_path / "runs.jsonl"
    lines.write_text("".join(json.dumps({"order": str(n), "seconds": 1.0}) + "\n" for n in range(RUNS)))
    _, console = processes.web(env=surroundings)
    worker = cluster.start(surroundings["DATABASE_URL"], workers=2)
    before = {process.pid for process in worker.tree().workers}
    processes.run("start", "rough", "--jsonl", str(lines), env=surroundings)
    processes.wait_until(
        lambda: of(pair.primary, "SELECT FROM runs_run WHERE step = 'wait'"), 30, "runs are under way"
    )

    pair.fail_over()
    worker.wait_until(
        lambda: worker.log_path.read_text().count("read-only transaction") >= 20,
        30,
        "workers meet a server that takes no writes, for longer than a lease",
    )
    (run,) = of(pair.standby, "SELECT id, event_seq FROM runs_run WHERE status <> 'completed' LIMIT 1")
    with httpx.Client(base_url=console, cookies=signed_in, timeout=20) as browser:
        page = browser.get(f"/runs/{run[0]}/cancel/")
        assert page.status_code == 200, page.text
        token = browser.cookies["csrftoken"]
        answer = browser.post(
            f"/runs/{run[0]}/cancel/",
            data={"csrfmiddlewaretoken": token, "seen_version": str(run[1]), "reason": "test"},
        )
        assert answer.status_code == 503
        assert "the database takes no writes now" in answer.text
        assert "Nothing was changed" in answer.text

    pair.standby.promote()
    processes.wait_until(
        lambda: not of(pair.standby, "SELECT FROM runs_run WHERE status <> 'completed'"),
        60,
        "all runs complete",
    )
    summary = ledger.summary()
    assert not summary.repeated
    assert (summary.counts["refund"], summary.counts["charge"]) == (RUNS, RUNS)
    assert not of(pair.standby, "SELECT FROM runs_attempt WHERE outcome = 'crashed'")
    assert {process.pid for process in worker.tree().workers} == before
    report = tmp_path / "doctor.json"
    processes.manage("doctor", "--json", str(report), env=surroundings).wait_ended(60)
    wrong = [problem["check"] for problem in json.loads(report.read_text())["problems"]]
    # The servers of the tests are fast and not durable.
    assert set(wrong) <= {"durability"}
