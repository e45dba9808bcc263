"""Queries over the inbox, compiled once for each person: Django takes longer to write them than PostgreSQL to answer.

Every page of the console makes one of them, for the numbers in its navigation.
"""

from collections.abc import Callable, Hashable
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

from runs import access

#: Statements that a process keeps; each has about 5 KB.
MOST = 1000
_kept: dict[Hashable, tuple[str, tuple[Any, ...]] | None] = {}


def rows(
    user: AbstractBaseUser, what: Hashable, build: Callable[[], QuerySet[Any, Any]], around: str = "{}"
) -> list[tuple[Any, ...]]:
    """The rows of the query that `build` makes, its statement put into `around`.

    `what` tells it from this person's other queries. It may depend on the person through `runs.access` and by id and name alone,
    and on the time through the database's clock.
    """
    key = (what, access.basis(user))
    try:
        # In one look: other threads of the process empty it at any moment.
        statement = _kept[key]
    except KeyError:
        statement = _compiled(build(), around)
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[key] = statement
    if statement is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(*statement)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def _compiled(query: QuerySet[Any, Any], around: str) -> tuple[str, tuple[Any, ...]] | None:
    """None where it can find nothing."""
    try:
        sql, parameters = query.query.sql_with_params()
    except EmptyResultSet:
        return None
    return around.format(sql), parameters
