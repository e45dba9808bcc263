"""Fixtures of all tests: a throw-away PostgreSQL server, and a database that each test finds as migrations left it."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import connections
from django.test import TransactionTestCase
from pytest_django import DjangoDbBlocker

from agentops import env
from tests.harness.pristine import Pristine
from tests.harness.processes import Processes
from tests.harness.server import Databases, ThrowAwayServer, remove_left_overs


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite waits more than it computes, so it runs in one process more than there are cores; a part of it in one.

    Each process has a server of its own (settings.py).
    """
    whole = config.args == config.getini("testpaths")
    return min(6, (os.cpu_count() or 1) + 1) if whole else 0


#: Files that take a minute or more begin first.
LONGEST_FIRST = ("races/test_pairs.py", "benchmark/test_benchmark.py", "demo/test_command.py")
#: Folders whose tests start processes, and wait most of the time.
WAITING = {"benchmark", "chaos", "cluster", "demo", "rough", "sandbox"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In parallel processes, mix files that wait with those that compute: a machine has time for both at once.

    Browsers stay last, in their order (e2e/conftest.py). See --no-loadscope-reorder in pyproject.toml.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    kinds: dict[str, dict[Path, None]] = {"waits": {}, "computes": {}, "e2e": {}}
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        kind = "e2e" if folder == "e2e" else "waits" if folder in WAITING else "computes"
        kinds[kind][item.path] = None
    places = {
        path: n / len(files) + (kind == "e2e")
        for kind, files in kinds.items()
        for n, path in enumerate(files)
    }
    places |= {Path(__file__).parent / name: n - len(LONGEST_FIRST) for n, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places[item.path])


def _own_server() -> ThrowAwayServer | None:
    if os.environ.get("AGENTOPS_TEST_DATABASE_URL"):
        return None
    return ThrowAwayServer(Path(os.environ["AGENTOPS_TEST_FOLDER"]) / "postgres")


@pytest.fixture(scope="session")
def session_server() -> Iterator[ThrowAwayServer | None]:
    """The server of this run, started once; None where AGENTOPS_TEST_DATABASE_URL names another one."""
    server = _own_server()
    if server is None:
        yield None
        return
    remove_left_overs()
    server.start()
    yield server
    server.stop("immediate")


@pytest.fixture
def postgres_server(
    session_server: ThrowAwayServer | None, transactional_db: None
) -> Iterator[ThrowAwayServer]:
    """The server that holds the test database, to stop, kill and start again; it runs again after the test."""
    if session_server is None:
        pytest.skip(
            "stops the database server, and AGENTOPS_TEST_DATABASE_URL names one that is not ours to stop"
        )
    yield session_server
    session_server.start()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    session_server: ThrowAwayServer | None, django_db_modify_db_settings_parallel_suffix: None
) -> None:
    """Have the server run before Django makes the test database."""


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, session_server: ThrowAwayServer | None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Put the migrated database back after every test that commits (harness/pristine.py).

    Django would truncate all tables instead, which loses the rows that migrations made, fails on append-only tables
    and takes longer. Ending the sessions of left-over processes is part of it.
    """
    name = settings.DATABASES["default"]["NAME"]
    connections.close_all()
    pristine = Pristine(Databases(_maintenance_url()), name, _url_of(name))

    def restore(test_case: TransactionTestCase) -> None:
        connections.close_all()
        try:
            pristine.restore()
        except psycopg.OperationalError:
            if session_server is None:
                raise
            # The test has left it stopped or recovering.
            session_server.start()
            pristine.restore()

    patch = pytest.MonkeyPatch()
    patch.setattr(TransactionTestCase, "_fixture_teardown", restore)
    yield
    patch.undo()
    pristine.close()


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """URL of the test database, for other processes and for connections of the test's own."""
    return _url_of(settings.DATABASES["default"]["NAME"])


def _maintenance_url() -> str:
    return _url_of("postgres")


def _url_of(database: str) -> str:
    """DATABASE_URL with another database name."""
    url = os.environ["DATABASE_URL"]
    name = env.database(url)["NAME"]
    head, _, query = url.partition("?")
    return head.removesuffix(f"/{name}") + f"/{database}" + (f"?{query}" if query else "")


@pytest.fixture
def processes(tmp_path: Path, database_url: str) -> Iterator[Processes]:
    """Starts real workers, sandboxes and web servers on the test database; all of them are dead after the test."""
    with Processes(tmp_path, database_url) as started:
        yield started
