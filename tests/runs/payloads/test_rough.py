"""What JSON and PostgreSQL cannot hold, through every door of a step: a clear error or a visible marker, always a row."""

import json
from typing import Any

import pytest

from runs import codec
from runs.lifecycle import Actor
from runs.models import Attempt, LogLine, Operation, Run
from runs.services import start
from tests.runs.engine.conftest import until
from tests.runs.payloads import flows

SYSTEM = Actor("system")

pytestmark = pytest.mark.usefixtures("worker")

#: Doors at which the workflow is told, by a path below this one.
STRICT = {
    "state": "ctx.state.documents[1].body",
    "arguments": "echo.value.body",
    "once": "act.arguments[0].body",
    "message": "message.body",
    "request": "model request.messages[0].content",
    "ask": "May I?.body",
    "external": "body",
    "result": "result.body",
}


def begin(door: str, what: str) -> Run:
    return start(SYSTEM, "t_rough", {"door": door, "what": what}).run


def attempt(run: Run) -> Attempt:
    """Its only one."""
    return Attempt.objects.get(run_id=run.pk)


@pytest.mark.parametrize("door", STRICT)
def test_what_a_step_hands_over_is_refused_once_with_its_path(door: str) -> None:
    runs = {what: begin(door, what) for what in flows.BAD}
    for what, run in runs.items():
        until(run)
        assert (run.status, run.failure_kind) == ("failed", "not_retryable"), (what, run.reason)
        assert STRICT[door] in run.reason, what
        assert flows.BAD[what][1] in run.reason, what
        assert "NotRecordable" in attempt(run).error_type, "a retry cannot help"
    assert not Operation.objects.exists()


@pytest.mark.parametrize("door", ["answer", "effect"])
def test_what_comes_from_outside_is_recorded_with_a_marker(door: str) -> None:
    runs = {what: begin(door, what) for what in [*flows.BAD, "meddling"]}
    for what, run in runs.items():
        until(run)
        assert run.status == "completed", (what, run.reason)
        kept = json.dumps(Operation.objects.get(run=run).result, ensure_ascii=False)
        assert "⟦" in kept or what == "key", (what, kept[:200])


def test_a_model_may_answer_anything() -> None:
    run = until(begin("model", ""))
    assert (run.status, run.result) == ("completed", "a⟦U+0000⟧b⟦U+D800⟧")
    assert Operation.objects.get(run=run).result["raw"] == "⟦nan⟧"


def test_a_log_line_is_always_written() -> None:
    runs = {what: begin("log", what) for what in flows.BAD}
    for what, run in runs.items():
        assert until(run).status == "completed", (what, run.reason)
        assert LogLine.objects.get(run_id=run.pk).level == "in⟦U+0000⟧fo"


@pytest.mark.parametrize("door", ["error", "tool error"])
def test_an_error_that_cannot_be_written_does_not_hide_itself(door: str) -> None:
    runs = {what: begin(door, what) for what in flows.ERRORS}
    for what, run in runs.items():
        until(run, timeout=30)
        assert run.status == "failed", what
        name = type(flows.ERRORS[what]).__name__
        rows = Attempt.objects.filter(run_id=run.pk, outcome="failed")
        assert rows, what
        if door == "error":
            assert {row.error_type for row in rows} == {name}
            assert all(row.error and row.traceback and len(row.error) < 11_000 for row in rows)
        else:
            assert Operation.objects.get(run=run).error_type == name
    told = Attempt.objects.filter(run_id=runs["unprintable"].pk).first()
    assert told is not None
    assert door == "tool error" or told.error == "(its text could not be made: RuntimeError)"


def test_data_stays_data_whatever_it_looks_like() -> None:
    runs = {what: begin("odd", what) for what in flows.ODD}
    for what, run in runs.items():
        until(run)
        assert run.status == "completed", (what, run.reason)
        assert codec.decode(run.result) == flows.ODD[what]


def test_an_external_identifier_cannot_pose_as_a_tag() -> None:
    run = until(begin("name of a tag", ""))
    assert (run.failure_kind, run.external) == ("not_retryable", {})


def test_a_state_over_the_limit_is_named_by_its_path(settings: Any) -> None:
    settings.AGENTOPS_PAYLOAD_LIMITS = {"state": 30_000}
    run = until(start(SYSTEM, "t_large", {}).run)
    assert (run.status, run.failure_kind) == ("failed", "not_retryable")
    assert "ctx.state.documents is 38.7 KB of 30.0 KB of JSON" in run.reason
    assert "record a reference to it" in run.reason
