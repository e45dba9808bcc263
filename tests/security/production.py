"""The settings of production, as another process sees them."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.harness.processes import ROOT

ENVIRONMENT = {
    "AGENTOPS_SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "AGENTOPS_WEBHOOK_SECRET": "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3",
    "AGENTOPS_ALLOWED_HOSTS": "ops.example",
    "AGENTOPS_MODEL_API_KEY": "sk-model-key-of-production",
    "AGENTOPS_SMTP_PASSWORD": "smtp password of production",
    "DATABASE_URL": "postgresql://ops:database%20password@db.example/ops",
}
SECRETS = (
    ENVIRONMENT["AGENTOPS_SECRET_KEY"],
    ENVIRONMENT["AGENTOPS_WEBHOOK_SECRET"],
    ENVIRONMENT["AGENTOPS_MODEL_API_KEY"],
    ENVIRONMENT["AGENTOPS_SMTP_PASSWORD"],
    "database password",
    "database%20password",
)


def run(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process with these settings and `more`."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AGENTOPS_") and name != "DATABASE_URL"
    }
    environment = own | ENVIRONMENT | {"DJANGO_SETTINGS_MODULE": "agentops.settings"} | more
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def settings_of(*names: str, **more: str) -> dict[str, Any]:
    """The values of these settings in production."""
    code = (
        "import json; from django.conf import settings;"
        f"print(json.dumps({{name: getattr(settings, name) for name in {names!r}}}, default=str))"
    )
    done = run(code, **more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
