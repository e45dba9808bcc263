"""Django's sessions of the database, kept for the next thread that wants one."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, connections


@contextmanager
def pooled(most: int = 40, wait: float = 20) -> Iterator[None]:
    """Share sessions among threads, as a worker's process does (agentops/cluster/worker.py); at most so many.

    The engine gives its session back after each colder transaction. Otherwise most of a test's time would go into forking
    server processes. `wait`: seconds until a thread that gets none fails.
    """
    options = connection.settings_dict["OPTIONS"]
    if "pool" in options:
        yield
        return
    connections.close_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)
        patch.setitem(options, "pool", {"min_size": 0, "max_size": most, "timeout": wait})
        try:
            yield
        finally:
            connections.close_all()
            connection.close_pool()  # type: ignore[attr-defined]
