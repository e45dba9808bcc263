"""PgBouncer in transaction mode: sessions of the server are shared, so nothing may rest on a session."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from psycopg.pq import TransactionStatus

from agentops.env import WrongSetting
from agentops.postgresql.base import assume_role
from agentops.sandbox.client import SandboxLedger
from tests.harness.pgbouncer import PgBouncer, program
from tests.harness.processes import Processes
from tests.harness.server import ThrowAwayServer
from tests.rough.conftest import LOGIN, Cluster, Login, begin, cookies, left
from tests.rough.nested import CORE, SHORT, run_tests

pytestmark = pytest.mark.django_db(transaction=True)

#: A pause reaches workers by polling there, and a run that is started at the same moment may be claimed before; plans of prepared
#: statements are none of its business.
NEEDS_SESSION = (
    "tests/runs/engine/test_waits.py::test_a_paused_workflow_parks_its_runs_and_resumes_them",
    "tests/runs/engine/test_batches.py::test_a_plan_that_was_made_for_a_small_table_is_good_for_a_large_one",
)
UNPREPARED = {"AGENTOPS_PREPARED_STATEMENTS": "0"}


def database() -> str:
    """Name of the test database, known only when it was made."""
    return str(settings.DATABASES["default"]["NAME"])


@pytest.fixture
def bouncer(postgres_server: ThrowAwayServer) -> Iterator[PgBouncer]:
    if program() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PgBouncer is not installed: apt-get install pgbouncer")
        pytest.skip("PgBouncer is not installed")
    # Beside the tests' server: the path of its socket is short enough.
    folder = Path(os.environ["AGENTOPS_TEST_FOLDER"]) / f"bouncer-{os.urandom(3).hex()}"
    bouncer = PgBouncer(folder, postgres_server, ["agentops", "pgbouncer", LOGIN])
    yield bouncer
    bouncer.stop()


def test_runs_verbs_and_pages_go_through_a_pooler_in_transaction_mode(
    login: Login,
    bouncer: PgBouncer,
    cluster: Cluster,
    processes: Processes,
    ledger: SandboxLedger,
    tmp_path: Path,
) -> None:
    login.alter("SET role TO agentops_app")
    url = bouncer.url(login.name, database())
    env = UNPREPARED | {"AGENTOPS_DB_ROLE": "agentops_app"}
    signed_in = cookies()
    ids = begin(20)
    waiting = begin(2, "rough_signal")
    cluster.start(url, workers=2, env=env)
    surroundings = cluster.environment(url, env)
    for number, pk in enumerate(waiting):
        processes.run("signal", "go", "--run", str(pk), "--id", str(number), env=surroundings)
    _, console = processes.web(env=surroundings)
    assert httpx.get(f"{console}/runs/", cookies=signed_in).status_code == 200
    processes.wait_until(lambda: left() == 0, 60, "all runs complete")
    assert Group.objects.filter(name__in=[str(pk) for pk in ids]).count() == 20
    summary = ledger.summary()
    assert not summary.repeated
    assert (summary.counts["refund"], summary.counts["charge"]) == (22, 20)
    # Two processes with their beats, listeners and pools shared the few sessions that the pooler has.
    assert login.sessions() <= 8
    assert "already exists" not in processes.logs()
    assert "ERROR" not in bouncer.log()
    report = tmp_path / "doctor.json"
    processes.manage("doctor", "--json", str(report), env=cluster.environment(url)).wait_ended(60)
    assert "pooler" in {problem["check"] for problem in json.loads(report.read_text())["problems"]}


def test_no_session_of_the_pooler_is_left_with_a_role_that_one_client_assumed(
    login: Login, bouncer: PgBouncer, cluster: Cluster, processes: Processes
) -> None:
    url = bouncer.url(login.name, database())
    env = cluster.environment(url, UNPREPARED | {"AGENTOPS_DB_ROLE": "agentops_app"})
    worker = processes.manage("worker", env=env)
    assert worker.wait_ended(30) == 1
    said = worker.log_path.read_text()
    assert f"ALTER ROLE {login.name} SET role TO agentops_app" in said
    assert "Traceback" not in said
    with psycopg.connect(url, prepare_threshold=None) as raw:
        with pytest.raises(WrongSetting, match="a pooler is in front"):
            assume_role(raw, "agentops_app")
        raw.rollback()
    assert roles_of_all_sessions(url) == {login.name}

    login.alter("SET role TO agentops_app")
    login.end_sessions()
    with psycopg.connect(url, prepare_threshold=None) as raw:
        assume_role(raw, "agentops_app")
        assert raw.info.transaction_status == TransactionStatus.INTRANS
    assert roles_of_all_sessions(url) == {"agentops_app"}


def roles_of_all_sessions(url: str) -> set[str]:
    """The role in each of the pooler's eight sessions: eight clients hold one each at the same time."""
    clients = [psycopg.connect(url, prepare_threshold=None) for _ in range(8)]
    try:
        rows = [raw.execute("SELECT current_user, pg_backend_pid()").fetchone() for raw in clients]
    finally:
        for raw in clients:
            raw.close()
    found = [row for row in rows if row is not None]
    assert len({pid for _, pid in found}) == 8
    return {role for role, _ in found}


def test_directly_connected_the_role_is_assumed_by_the_session(login: Login) -> None:
    with psycopg.connect(login.url) as raw:
        assume_role(raw, "agentops_app")
        assert raw.execute("SELECT current_user").fetchone() == ("agentops_app",)


@pytest.mark.django_db(transaction=False)
def test_the_tests_of_waits_and_of_the_schema_pass_through_the_pooler(
    bouncer: PgBouncer, tmp_path: Path
) -> None:
    through(bouncer, SHORT, tmp_path, 300)


@pytest.mark.long
def test_the_tests_of_the_engine_pass_through_the_pooler(bouncer: PgBouncer, tmp_path: Path) -> None:
    print(through(bouncer, CORE, tmp_path, 1800))


def through(bouncer: PgBouncer, tests: tuple[str, ...], folder: Path, timeout: float) -> str:
    return run_tests(
        bouncer.url("agentops", "pooled"),
        [*tests, *(f"--deselect={name}" for name in NEEDS_SESSION)],
        folder / "nested",
        timeout=timeout,
        env={"AGENTOPS_TEST_PREPARED_STATEMENTS": "0"},
    )
