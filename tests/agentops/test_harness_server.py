import os
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import connection

from tests.harness.server import ThrowAwayServer, remove_left_overs


@pytest.mark.django_db
def test_a_test_sees_a_migrated_database() -> None:
    assert connection.settings_dict["NAME"].startswith("test_")
    Group.objects.create(name="left over from a rolled-back test")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("round_number", [1, 2])
def test_what_a_test_commits_is_gone_afterwards(round_number: int) -> None:
    assert not Group.objects.filter(name__startswith="left over").exists()
    Group.objects.create(name="left over from a committed test")


def test_a_killed_server_recovers_what_was_committed(
    postgres_server: ThrowAwayServer, database_url: str
) -> None:
    Group.objects.create(name="committed before the kill")
    connection.close()
    postgres_server.kill()
    assert postgres_server.postmaster() is None
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(database_url)
    postgres_server.start()
    with psycopg.connect(database_url) as session:
        assert session.execute(
            "SELECT count(*) FROM auth_group WHERE name LIKE 'committed before%'"
        ).fetchone() == (1,)


def test_what_a_killed_test_run_left_over_is_removed() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = Path(tempfile.mkdtemp(prefix=f"agentops-tests-{gone.pid}-"))
    server = ThrowAwayServer(left / "postgres")
    server.start()
    remove_left_overs()
    assert server.postmaster() is None
    assert not left.exists()
    assert Path(os.environ["AGENTOPS_TEST_FOLDER"]).exists()


def test_a_restart_keeps_the_address(postgres_server: ThrowAwayServer, database_url: str) -> None:
    connection.close()
    postgres_server.restart("immediate")
    with psycopg.connect(database_url) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
