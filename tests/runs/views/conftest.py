"""People in each group, signed in; and how a form of a verb is sent as its page would send it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from runs.models import Run
from tests.runs.views.people import client


@pytest.fixture
def support(db: None) -> Client:
    return client("support")


@pytest.fixture
def operator(db: None) -> Client:
    return client("operators")


@pytest.fixture
def admin(db: None) -> Client:
    return client("admins")


@pytest.fixture
def stranger(db: None) -> Client:
    """Somebody with a sign-in and no permission."""
    return client()


@pytest.fixture
def form() -> Callable[..., dict[str, Any]]:
    """What the page of a verb sends."""

    def fill(run: Run, **fields: Any) -> dict[str, Any]:
        run.refresh_from_db()
        return {"seen_version": run.seen_version, "reason": "because", **fields}

    return fill
