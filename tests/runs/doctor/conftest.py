"""How a test breaks what the database itself refuses to break."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from runs.doctor import Check, Finding, Snapshot


@contextmanager
def unguarded(*constraints: str) -> Iterator[None]:
    """Without triggers and foreign keys, and without the named constraints and indexes ("table.name")."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for constraint in constraints:
            table, name = constraint.split(".")
            cursor.execute("SELECT count(*) FROM pg_constraint WHERE conname = %s", [name])
            if cursor.fetchone()[0]:
                cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
            else:
                cursor.execute(f"DROP INDEX {name}")
        cursor.execute("SET session_replication_role = replica")
        try:
            yield
        finally:
            cursor.execute("SET session_replication_role = origin")


def execute(sql: str, *parameters: Any) -> None:
    """One statement, which must change something."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        assert cursor.rowcount, "the statement changed nothing"


type Look = Callable[[Check], list[Finding]]


@pytest.fixture
def look(db: None) -> Look:
    """Run one check on the test's own transaction, without grace."""

    def run(check: Check) -> list[Finding]:
        with connection.cursor() as cursor:
            return list(check(Snapshot(cursor, grace=0)))

    return run
