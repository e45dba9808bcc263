"""Workers that connect with a login of their own, whose limits a test sets, and a judge of what became of their runs."""

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.test import Client

import tests.rough.flows.workflows  # noqa: F401
from agentops.sandbox.client import SandboxLedger
from runs import doctor
from runs.lifecycle import Actor
from runs.models import Attempt, Run
from runs.services import start
from tests import factories
from tests.chaos.conftest import QUICK
from tests.harness.processes import Child, Processes, RunningSandbox

APPS = {"AGENTOPS_APPS": "tests.rough.flows"}
#: Roles belong to the server, which tests in parallel processes may share.
LOGIN = f"rough_login_{os.environ['AGENTOPS_TEST_WORKER']}"


@dataclass(frozen=True)
class Login:
    """A login that has the rights of web and workers and nothing more."""

    admin_url: str
    name: str = LOGIN

    @property
    def url(self) -> str:
        return as_user(self.admin_url, self.name)

    def admin(self, statement: str) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as raw:
            raw.execute(statement)

    def alter(self, what: str) -> None:
        """ALTER ROLE; acts on new sessions."""
        self.admin(f"ALTER ROLE {self.name} {what}")

    def end_sessions(self) -> None:
        self.admin(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.name}'")

    def sessions(self) -> int:
        with psycopg.connect(self.admin_url, autocommit=True) as raw:
            row = raw.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = %s", [self.name]
            ).fetchone()
        assert row is not None
        return int(row[0])


def as_user(url: str, name: str) -> str:
    """`url` with another login."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}").geturl()


@pytest.fixture
def login(database_url: str) -> Iterator[Login]:
    login = Login(database_url)
    drop = f"DROP ROLE IF EXISTS {login.name}"
    login.admin(drop)
    login.admin(f"CREATE ROLE {login.name} LOGIN IN ROLE agentops_app")
    yield login
    login.admin(drop)


@pytest.fixture
def sandbox(processes: Processes) -> RunningSandbox:
    return processes.sandbox()


@pytest.fixture
def ledger(sandbox: RunningSandbox) -> Iterator[SandboxLedger]:
    with SandboxLedger(sandbox.url) as ledger:
        yield ledger


class Cluster:
    """Starts worker clusters that use a given database, with short leases."""

    def __init__(self, processes: Processes, sandbox: RunningSandbox) -> None:
        self.processes, self.sandbox = processes, sandbox

    def environment(self, url: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        outside = {"DATABASE_URL": url, "AGENTOPS_SANDBOX_URL": self.sandbox.url}
        return {**QUICK, **APPS, **outside, **(extra or {})}

    def start(
        self, url: str, *arguments: str, workers: int = 1, env: Mapping[str, str] | None = None
    ) -> Child:
        return self.processes.worker(*arguments, processes=workers, env=self.environment(url, env))


@pytest.fixture
def cluster(processes: Processes, sandbox: RunningSandbox) -> Cluster:
    return Cluster(processes, sandbox)


def cookies() -> dict[str, str]:
    """Those of a browser in which an admin is signed in."""
    client = Client()
    client.force_login(factories.user("", "admins"))
    name = settings.SESSION_COOKIE_NAME
    return {name: client.cookies[name].value}


def begin(count: int, workflow: str = "rough", seconds: float = 0.3) -> list[uuid.UUID]:
    """Start `count` runs; returns their ids."""
    given = [{"order": str(n), "seconds": seconds} for n in range(count)]
    return [start(Actor("test"), workflow, one).run.pk for one in given]


def left() -> int:
    """Runs that have not completed."""
    return Run.objects.exclude(status="completed").count()


def assert_nothing_lost_or_repeated(
    ids: list[uuid.UUID], ledger: SandboxLedger, *, more_refunds: int = 0
) -> None:
    """All runs of workflow `rough` completed, and each thing that they do happened once; doctor finds nothing."""
    assert set(Run.objects.filter(status="completed").values_list("pk", flat=True)) >= set(ids)
    assert Group.objects.filter(name__in=[str(pk) for pk in ids]).count() == len(ids)
    summary = ledger.summary()
    assert not summary.repeated, summary.repeated[:5]
    assert (summary.counts["refund"], summary.counts["charge"]) == (len(ids) + more_refunds, len(ids))
    wrong = [problem for problem in doctor.examine() if problem.severity == doctor.ERROR]
    # The server of the tests is fast and not durable.
    assert [problem.check for problem in wrong] in ([], ["durability"]), wrong


def nobody_was_taken_for_dead() -> bool:
    return not Attempt.objects.filter(outcome="crashed").exists()
