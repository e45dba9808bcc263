"""Django's PostgreSQL backend for the embedded server: has it running before it connects."""

from pathlib import Path
from typing import Any

from agentops.embedded import sharing
from agentops.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """Starts the embedded server at this process's first connection, or joins the one that runs."""

    def get_connection_params(self) -> dict[str, Any]:
        from django.conf import settings

        data_dir: Path = settings.AGENTOPS_DATA_DIR
        if not sharing.holds(data_dir):
            sharing.hold(data_dir)
        return super().get_connection_params()
