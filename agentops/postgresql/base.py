"""The backend that settings name; the one of the embedded server builds on it."""

from typing import Any

from django.db.backends.postgresql import base
from psycopg import Connection, sql

from agentops.env import WrongSetting


class DatabaseWrapper(base.DatabaseWrapper):
    """Django 6.1 composes SET ROLE with a connection of its own: a pool that is just making one would wait for itself."""

    def _configure_role(self, connection: Connection[Any]) -> bool:
        role = self.settings_dict["OPTIONS"].get("assume_role")
        if role:
            assume_role(connection, role)
        return bool(role)


def assume_role(connection: Connection[Any], role: str) -> None:
    """Have the session work as `role`, for as long as it lasts.

    Raises WrongSetting behind a pooler, unless the login has the role by itself: a pooler in transaction mode hands the
    server's session on to other clients, with the role that one of them has assumed, and this client's next transaction
    goes to a session without it.
    """
    row = connection.execute("SELECT current_user, session_user, pg_backend_pid()").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    user, login, server_pid = row
    if user == role:
        return
    # What a pooler tells its client at the start is a number of its own.
    if server_pid != connection.info.backend_pid:
        raise WrongSetting(
            f"AGENTOPS_DB_ROLE is {role}, but a pooler is in front of the database, which would hand an assumed role on to"
            f" others: have the login assume it by itself (ALTER ROLE {login} SET role TO {role}), and let the pooler"
            " reconnect."
        )
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
