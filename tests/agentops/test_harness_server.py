import os
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection

from agentops.embedded.server import programs
from tests.harness.pristine import Pristine
from tests.harness.server import Databases, ThrowAwayServer, remove_left_overs


@pytest.mark.django_db
def test_a_test_sees_a_migrated_database() -> None:
    assert connection.settings_dict["NAME"].startswith("test_")
    Group.objects.create(name="left over from a rolled-back test")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("round_number", [1, 2])
def test_what_a_test_commits_is_gone_afterwards(round_number: int) -> None:
    assert not Group.objects.filter(name__startswith="left over").exists()
    Group.objects.create(name="left over from a committed test")


def dump(url: str) -> str:
    """All of a database, as PostgreSQL's own program writes it; how far statistics are."""
    command = [str(programs() / "pg_dump"), "--create", "--no-sync", "--restrict-key=same", url]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with psycopg.connect(url) as session:
        analysed = session.execute("SELECT count(*) FROM pg_statistic WHERE starelid >= 16384").fetchone()
    return f"{written}\n{analysed}"


#: What a test may leave behind, and whether more than rows has changed.
LEFT = {
    "INSERT INTO auth_group (name) VALUES ('left over')": False,
    "UPDATE auth_group SET name = name || '!'; DELETE FROM auth_group_permissions": False,
    "INSERT INTO auth_user (username, password, first_name, last_name, email, is_superuser, is_staff, is_active, date_joined)"
    " VALUES ('left over', '', '', '', '', false, false, true, now())": False,
    "SELECT setval(pg_get_serial_sequence('auth_group', 'id'), 1000)": False,
    "CREATE TABLE left_over (id int)": True,
    "CREATE FUNCTION left_over() RETURNS int LANGUAGE sql AS 'SELECT 1'": True,
    "ALTER TABLE runs_event DISABLE TRIGGER append_only": True,
    "ALTER TABLE runs_run ALTER COLUMN workflow SET STATISTICS 10": True,
    "GRANT SELECT ON auth_group TO PUBLIC": True,
    "ALTER DATABASE spare SET work_mem = '1MB'": True,
    "ANALYZE auth_permission": True,
}


def test_whatever_a_test_leaves_behind_is_gone_and_rows_alone_are_put_back_without_a_copy(
    postgres_server: ThrowAwayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases, url = Databases(postgres_server.url("postgres")), postgres_server.url("spare")
    databases.copy(f"{settings.DATABASES['default']['NAME']}_pristine", "spare")
    pristine = Pristine(databases, "spare", url)
    before, copied, copy = dump(url), [], databases.copy

    def counted(source: str, target: str) -> None:
        copied.append(target)
        copy(source, target)

    monkeypatch.setattr(databases, "copy", counted)
    for left, more_than_rows in LEFT.items():
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(left)
        assert dump(url) != before, left
        pristine.restore()
        assert dump(url) == before, left
        assert bool(copied) is more_than_rows, left
        copied.clear()
    pristine.close()
    databases.drop("spare")


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
