"""The backend that settings name; the one of the embedded server builds on it."""

from typing import Any

from django.db.backends.postgresql import base
from psycopg import Connection, sql


class DatabaseWrapper(base.DatabaseWrapper):
    """Django 6.1 composes SET ROLE with a connection of its own: a pool that is just making one would wait for itself."""

    def _configure_role(self, connection: Connection[Any]) -> bool:
        role = self.settings_dict["OPTIONS"].get("assume_role")
        if role:
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        return bool(role)
