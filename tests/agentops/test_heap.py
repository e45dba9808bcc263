"""What a process keeps until it ends is out of the sight of the collector of cycles."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def says(code: str) -> str:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "agentops.settings", "AGENTOPS_DEBUG": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_web_process_has_loaded_its_pages_and_keeps_them() -> None:
    found = says(
        "import gc, sys, agentops.wsgi\n"
        "from django.template.loader import engines\n"
        "loader = engines['django'].engine.template_loaders[0]\n"
        "print(gc.get_freeze_count() > 100_000, 'runs.views.page' in sys.modules, len(loader.get_template_cache) > 50)"
    )
    assert found == "True True True"
