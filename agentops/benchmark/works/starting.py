"""W11: how soon a worker that is started executes something, and what the web process does not load."""

import subprocess
import sys
import time
from statistics import median

from django.conf import settings

from agentops.benchmark import scratch
from agentops.benchmark.bench import Bench
from agentops.benchmark.figures import Figures

#: Packages of model providers and of frameworks for agents: large, and of no use to pages.
MODEL_SDKS = (
    "anthropic",
    "boto3",
    "cohere",
    "google.genai",
    "langchain",
    "litellm",
    "mistralai",
    "openai",
    "pydantic_ai",
    "torch",
)
FIRST = 9_000_000

_IMPORT_WORKER = "import django; django.setup(); import agentops.cluster.worker, agentops.cluster.cluster, runs.engine.worker"
_LOAD_WEB = f"""
import sys
from agentops.wsgi import application
from django.test import Client
from django.urls import get_resolver
get_resolver().url_patterns
print(sum(name in sys.modules for name in {MODEL_SDKS!r}))
"""


def measure(bench: Bench) -> Figures:
    imports = [_seconds(_IMPORT_WORKER)[0] for _ in range(bench.size.kills)]
    firsts = []
    for number in range(bench.size.kills):
        bench.start("benchmark_idle", FIRST + number)
        began = time.monotonic()
        with bench.workers():
            mark = bench.trace.one(FIRST + number, {"idle"}, 60, "the first line of the run that was there")
        firsts.append(mark.at - began)
    return {
        "W11.import_s": round(median(imports), 2),
        "W11.first_claim_s": round(median(firsts), 2),
        "W11.web_model_sdks": int(_seconds(_LOAD_WEB)[1]),
    }


def _seconds(code: str) -> tuple[float, str]:
    """Seconds from the start of a Python process to its end, and what it says."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=settings.BASE_DIR,
        env=scratch.environment() | {"DJANGO_SETTINGS_MODULE": "agentops.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    return time.monotonic() - began, done.stdout
