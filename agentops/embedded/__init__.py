"""Embedded PostgreSQL: a real server under the data folder, for machines where DATABASE_URL is unset.

Every process of a checkout that connects holds a share of the server. The first one starts it, the last one to leave
stops it; a process that is killed loses its share with its file descriptors, and what it leaves running is used by the
next one. Settings only name the socket: nothing is started before the first connection.
"""

from agentops.embedded.server import EmbeddedUnavailable, PostgresServer
from agentops.embedded.sharing import database, hold, release, server_folder

__all__ = ["EmbeddedUnavailable", "PostgresServer", "database", "hold", "release", "server_folder"]
