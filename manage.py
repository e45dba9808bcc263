#!/usr/bin/env python
"""Command line of the project: `uv run manage.py COMMAND`."""

import os
import sys


def main() -> None:
    if sys.argv[1:2] == ["sandbox"]:
        # The outside world neither waits for Django's apps nor fails with them.
        from agentops.sandbox.__main__ import main as sandbox

        sys.exit(sandbox(sys.argv[2:]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
    if sys.argv[1:2] == ["chaos"]:
        # Nothing that it starts may ever see the database of an installation.
        from agentops.chaos.surroundings import prepare

        prepare(os.environ, sys.argv[2:])
    # The demo is for a developer's machine; settings are read before any command could say so.
    if sys.argv[1:2] == ["demo"] and not os.environ.get("AGENTOPS_DEBUG", "").strip():
        os.environ["AGENTOPS_DEBUG"] = "1"
    from django.core.management import execute_from_command_line
    from django.db import InterfaceError, OperationalError

    from agentops.embedded import EmbeddedUnavailable
    from agentops.env import WrongSetting

    try:
        execute_from_command_line(sys.argv)
    except (EmbeddedUnavailable, WrongSetting) as error:
        sys.exit(str(error))
    except (OperationalError, InterfaceError) as error:
        if "--traceback" in sys.argv:
            raise
        sys.exit(f"The database does not answer as it should: {str(error).strip()}")


if __name__ == "__main__":
    main()
