"""Fixtures of all tests: a throw-away PostgreSQL server, and a database that each test finds as migrations left it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connections
from django.test import TransactionTestCase
from pytest_django import DjangoDbBlocker

from agentops import env
from tests.harness.processes import Processes
from tests.harness.server import Databases, ThrowAwayServer, remove_left_overs


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite waits more than it computes, so it runs in one process more than there are cores; a part of it in one.

    Each process has a server of its own (settings.py).
    """
    whole = config.args == config.getini("testpaths")
    return min(6, (os.cpu_count() or 1) + 1) if whole else 0


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
    """Keep a copy of the migrated database, and put it back after every test that commits.

    Django would truncate all tables instead, which loses the rows that migrations made, fails on append-only tables
    and takes longer. Ending the sessions of left-over processes is part of it.
    """
    name = settings.DATABASES["default"]["NAME"]
    pristine = f"{name}_pristine"
    databases = Databases(_maintenance_url())

    def restore(test_case: TransactionTestCase) -> None:
        if session_server is not None:
            session_server.start()
        connections.close_all()
        databases.copy(pristine, name)

    connections.close_all()
    databases.copy(name, pristine)
    patch = pytest.MonkeyPatch()
    patch.setattr(TransactionTestCase, "_fixture_teardown", restore)
    yield
    patch.undo()
    databases.drop(pristine)


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
