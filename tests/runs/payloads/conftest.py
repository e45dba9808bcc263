"""The worker of the engine's tests, for payloads that go through it, and a redaction."""

from tests.runs.engine.conftest import quick, worker
from tests.runs.payloads.hiding import hiding

__all__ = ["hiding", "quick", "worker"]
