"""Whatever way a real worker brings a run to `failed`, the run is in a failure group afterwards."""

from datetime import timedelta

import pytest

from runs import clock
from runs.errors import NotRetryable
from runs.lifecycle import Actor
from runs.models import FailureGroup, Run
from runs.services import start
from tests.runs.engine.conftest import until
from tests.runs.engine.flows import world

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    world.__init__()  # type: ignore[misc]


def failed(workflow: str, n: int = 0, text: str = "", **options: object) -> Run:
    run = start(Actor("system"), workflow, {"n": n, "text": text}, **options).run  # type: ignore[arg-type]
    return until(run, "failed")


def told(run: Run) -> tuple[str, str, str]:
    assert run.fingerprint is not None
    group = FailureGroup.objects.get(pk=run.fingerprint)
    assert (group.sort, group.workflow, group.step) == ("failure", run.workflow, run.step)
    return run.failure_kind, group.error_type, group.message


def test_an_error_of_a_step_after_its_last_retry() -> None:
    assert told(failed("t_failing", 99)) == ("exhausted", "ValueError", "error <n>")


def test_what_the_workflow_itself_calls_a_failure() -> None:
    assert told(failed("t_failing", 0, "declared")) == ("declared", "Fail", "said so")


def test_a_step_that_takes_too_long() -> None:
    kind, error_type, _ = told(failed("t_slow_async"))
    assert (kind, error_type) == ("exhausted", "TimedOut")


def test_an_error_that_no_retry_can_help() -> None:
    world.script = [NotRetryable("card 4711 is blocked")]
    kind, error_type, message = told(failed("t_effect", 5, "pay"))
    assert (kind, error_type) == ("not_retryable", "ToolFailed")
    assert "card <n> is blocked" in message


def test_a_deadline_that_passed() -> None:
    run = start(
        Actor("system"), "t_signal", {"n": 0, "text": ""}, deadline_at=clock.now() + timedelta(seconds=1)
    ).run
    assert told(until(run, "failed"))[:2] == ("deadline", "DeadlinePassed")


def test_a_run_that_succeeds_is_in_none() -> None:
    run = until(start(Actor("system"), "t_failing", {"n": 1, "text": ""}).run, "completed")
    assert run.fingerprint is None
    assert not FailureGroup.objects.exists()
