"""Settings of the test run: those of the project, in debug mode, with a throw-away data folder and database.

Child processes of tests (see harness/processes.py) inherit the same environment and load agentops.settings itself.
AGENTOPS_TEST_DATABASE_URL names another server; without it one is made for the run (harness/server.py). With
AGENTOPS_TEST_PREPARED_STATEMENTS=0 it may be a PgBouncer in transaction mode.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Read here and not in conftest.py: pytest-django loads the settings before the first conftest. Each process of pytest-xdist has
# a folder, and so a server, of its own; processes that a test starts share that of their test.
if os.environ.get("AGENTOPS_TEST_WORKER") != os.environ.get("PYTEST_XDIST_WORKER", "main"):
    # The number of the process tells a later run that this one is gone (harness/server.py, remove_left_overs).
    folder = Path(tempfile.mkdtemp(prefix=f"agentops-tests-{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # One that a person has set for development must not leak into the tests.
    for name in [name for name in os.environ if name.startswith("AGENTOPS_") and "_TEST_" not in name]:
        del os.environ[name]
    # Containers often have compiled files switched off. Hundreds of processes that tests start would compile Django again each.
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder / "compiled")
        sys.dont_write_bytecode = False
    from tests.harness.server import ThrowAwayServer

    os.environ |= {
        "AGENTOPS_TEST_FOLDER": str(folder),
        "AGENTOPS_TEST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "main"),
        "AGENTOPS_DEBUG": "1",
        "AGENTOPS_PREPARED_STATEMENTS": os.environ.get("AGENTOPS_TEST_PREPARED_STATEMENTS", "1"),
        "AGENTOPS_DATA_DIR": str(folder / "data"),
        "AGENTOPS_SECRET_KEY": "key-of-the-tests-which-signs-nothing-that-anybody-trusts",
        "AGENTOPS_WEBHOOK_SECRET": "whsec_dGVzdHMtb25seS10ZXN0cy1vbmx5LXRlc3RzLW9ubHk=",
        "DATABASE_URL": os.environ.get("AGENTOPS_TEST_DATABASE_URL")
        or ThrowAwayServer(folder / "postgres").url(),
    }

from agentops.settings import *  # noqa: F403

# Cheap on purpose: tests sign in hundreds of times.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
