"""What workers say of the code that they execute."""

import uuid
from importlib import metadata

import pytest
from django.core.management import call_command

from runs.engine import code, leases
from runs.models import Worker


@pytest.fixture(autouse=True)
def fresh():
    code.version.cache_clear()
    yield
    code.version.cache_clear()


def test_the_environment_says_it(settings):
    settings.AGENTOPS_CODE_VERSION = "7f3a1c"
    assert code.version() == "7f3a1c"


def test_else_it_is_that_of_the_distributions_that_bring_the_apps(settings):
    settings.AGENTOPS_CODE_VERSION, settings.AGENTOPS_APPS = "", ["django.contrib.humanize", "no_such_app"]
    assert code.version() == f"Django {metadata.version('django')}"


def test_without_either_nothing_is_said(settings):
    settings.AGENTOPS_CODE_VERSION, settings.AGENTOPS_APPS = "", []
    assert code.version() == ""


@pytest.mark.django_db
def test_it_is_found_before_a_worker_process_is_forked(monkeypatch: pytest.MonkeyPatch):
    def start(cluster):
        assert code.version.cache_info().currsize == 1
        raise SystemExit(0)

    monkeypatch.setattr("agentops.cluster.cluster.WorkerCluster.start", start)
    with pytest.raises(SystemExit, match="0"):
        call_command("worker", skip_checks=True)


@pytest.mark.django_db
def test_a_worker_registers_with_it(settings):
    settings.AGENTOPS_CODE_VERSION = "7f3a1c"
    worker_id = uuid.uuid4()
    leases.register(worker_id, queues=["default"], capabilities=["parcel@1/pack"], slots=1)
    assert Worker.objects.get(pk=worker_id).code_version == "7f3a1c"
