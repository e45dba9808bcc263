"""Faults between a worker on this process's threads and its database: answers of COMMIT that are lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django.db
import psycopg
import pytest
from django.db.backends.postgresql.base import DatabaseWrapper

from runs.engine.database import Database
from runs.engine.execution import Execution
from runs.engine.statements import Fenced


class Losses:
    """Loses the answer of one commit each; `lost` tells how many were."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.lost = 0

    def of_statement(self, statement: str | Fenced, *, then: Callable[[], Any] = lambda: None) -> None:
        """The next execution of this hot statement commits, and the worker hears of a broken connection."""
        real, texts, left = Database.all, [statement], [1]
        if isinstance(statement, Fenced):
            texts = [statement.together, statement.alone]

        def execute(database: Database, text: str, parameters: Any) -> Any:
            loses = text in texts and bool(left)
            if loses:
                # Before it commits: the test may look as soon as it has.
                left.pop()
                self.lost += 1
            answer = real(database, text, parameters)
            if loses:
                then()
                raise psycopg.OperationalError("the connection was lost")
            return answer

        self._patch.setattr(Database, "all", execute)

    def of_colder_move(self, *, then: Callable[[], Any] = lambda: None) -> None:
        """The next transaction under the run's lock commits, and the worker hears of a broken connection."""
        real_lock = Execution.under_lock
        real_commit = DatabaseWrapper._commit  # type: ignore[attr-defined]
        here, left = threading.local(), [1]

        def under_lock(execution: Execution, work: Any, applied: Any) -> Any:
            here.armed = True
            try:
                return real_lock(execution, work, applied)
            finally:
                here.armed = False

        def commit(wrapper: DatabaseWrapper) -> None:
            loses = getattr(here, "armed", False) and bool(left)
            if loses:
                left.pop()
                self.lost += 1
                here.armed = False
            real_commit(wrapper)
            if loses:
                then()
                raise django.db.OperationalError("the connection was lost")

        self._patch.setattr(Execution, "under_lock", under_lock)
        self._patch.setattr(DatabaseWrapper, "_commit", commit)


@contextmanager
def losses() -> Iterator[Losses]:
    with pytest.MonkeyPatch.context() as patch:
        yield Losses(patch)
