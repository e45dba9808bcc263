"""Time is the database's.

Business time (wake times, time limits, deadlines) is the SQL function `agentops_now()`, which a test can move by writing
the one row of `runs_clock`. Beats and leases use `statement_timestamp()`, which no test moves.
"""

from datetime import datetime, timedelta
from typing import cast

from django.db import connection
from django.db.models import DateTimeField, Func


class Now(Func):
    """`agentops_now()` in a query."""

    function = "agentops_now"
    template = "%(function)s()"
    output_field = DateTimeField()


def now() -> datetime:
    """Business time of the current transaction, one round trip."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentops_now()")
        value: datetime = cursor.fetchone()[0]
    return value


def shift(delta: timedelta) -> None:
    """Move business time by `delta` (tests only; also backwards)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_clock (id, shift) VALUES (1, %s)"
            " ON CONFLICT (id) DO UPDATE SET shift = runs_clock.shift + excluded.shift",
            [cast(str, delta)],  # psycopg adapts a timedelta; the stubs do not know
        )
