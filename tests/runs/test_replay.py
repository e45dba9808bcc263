"""Support bundles, and executing them again."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from runs import services
from runs.bundles import bundle
from runs.engine.worker import RunWorker
from runs.models import Run
from runs.workflow import WORKFLOWS, Complete, Goto, Workflow, tool
from tests import factories
from tests.runs.engine.conftest import quick, until, worker

__all__ = ["quick", "worker"]

sent: list[str] = []


@tool(effect=True, idempotent=timedelta(hours=1))
def replay_charge(order: str, *, idempotency_key: str) -> dict[str, str]:
    sent.append(order)
    return {"charge": f"ch_{order}"}


@tool
def replay_look(order: str) -> int:
    sent.append(f"look {order}")
    return 30


shop = Workflow("t_replay")


@shop.step(start=True)
def price(ctx: Any) -> Goto:
    ctx.state["price"] = ctx.call(replay_look, order="1042")
    ctx.messages.add("agent", "The price is known.")
    return Goto(charge)


@shop.step
def charge(ctx: Any) -> Goto:
    charged = ctx.call(replay_charge, order="1042")
    ctx.log("charged", charge=charged["charge"])
    ctx.external["charge"] = charged["charge"]
    ctx.state["big"] = "x" * 50_000
    return Goto(settle)


@shop.step
def settle(ctx: Any) -> Complete:
    ctx.state["at"] = ctx.now()
    ctx.state["chance"] = ctx.random.random()
    paid = ctx.wait_signal("paid")
    return Complete(
        {"paid": paid, "talk": [one["content"] for one in ctx.messages], "ref": ctx.external["charge"]}
    )


def exported(run: Run, folder: Path) -> Path:
    path = folder / "bundle.json"
    with bundle.written(run.pk, "olga") as file:
        path.write_bytes(file.read())
    return path


def replayed(path: Path) -> tuple[str, str]:
    """What the command prints, and the error with which it ends."""
    out = io.StringIO()
    try:
        call_command("replay", path, stdout=out)
    except CommandError as error:
        return out.getvalue(), str(error)
    return out.getvalue(), ""


@pytest.fixture
def done(worker: RunWorker, tmp_path: Path) -> Path:
    sent.clear()
    run = services.start(factories.SYSTEM, "t_replay", {}).run
    services.receive_signal(
        factories.SYSTEM,
        name="paid",
        payload={"eur": 30},
        external_id=str(run.pk),
        source="test",
        run_id=run.pk,
    )
    until(run, "completed")
    return exported(run, tmp_path)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Any], Any]], None]:
    """Let a step of today have another body."""

    def put(step: str, body: Callable[[Any], Any]) -> None:
        declared = WORKFLOWS["t_replay"][1][-1]
        monkeypatch.setitem(declared.steps, step, replace(declared.steps[step], fn=body))

    return put


def test_the_same_code_does_what_the_run_did_and_nothing_is_sent(done: Path):
    sent.clear()
    told, error = replayed(done)
    assert error == ""
    assert told.splitlines()[1:] == [
        "= visit 1 price: as recorded: it goes on to charge",
        "= visit 2 charge: as recorded: it goes on to settle",
        "= visit 3 settle: as recorded: it completes",
        "the code of today does what the run did, in 3 of 3 visits executed again",
    ]
    assert sent == []


def test_a_step_that_asks_for_what_is_not_recorded_is_named_and_nothing_is_sent(
    done: Path, instead: Callable[..., None]
):
    sent.clear()

    def twice(ctx: Any) -> Goto:
        ctx.call(replay_charge, order="1042")
        ctx.call(replay_charge, order="1042")
        return Goto(settle)

    instead("charge", twice)
    told, error = replayed(done)
    wanted = "wants effect replay_charge, which is not recorded"
    assert f"≠ visit 2 charge: the run went on to settle; the code of today {wanted}" in told
    assert error == "the code of today leaves the record in 1 of 3 visits"
    assert sent == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (lambda ctx: Goto(settle), "no longer comes to effect replay_charge"),
        (
            lambda ctx: ctx.call(replay_charge, order="1043"),
            "now has other arguments than when it was recorded",
        ),
        (lambda ctx: 1 / 0, "fails with ZeroDivisionError: division by zero"),
        (lambda ctx: (ctx.call(replay_charge, order="1042"), Complete())[1], "the code of today completes"),
        (
            lambda ctx: (ctx.call(replay_charge, order="1042"), ctx.state.update(big="y"), Goto(settle))[2],
            "goes on to settle, with another state (big)",
        ),
        (
            lambda ctx: (ctx.call(replay_charge, order="1042"), ctx.wait_signal("more"))[1],
            "wants signal more",
        ),
    ],
)
def test_code_that_does_something_else_is_told_by_what_it_does(
    done: Path, instead: Callable[..., None], body: Callable[[Any], Any], says: str
):
    instead("charge", body)
    told, error = replayed(done)
    assert says in told and told.count("≠") == 1 and error


def test_a_body_that_writes_the_database_is_refused(done: Path, instead: Callable[..., None]):
    def write(ctx: Any) -> Goto:
        Run.objects.update(reason="gone")
        return Goto(settle)

    instead("charge", write)
    told, _ = replayed(done)
    assert "read-only transaction" in told
    assert not Run.objects.filter(reason="gone").exists()


def test_another_message_and_another_result_are_told(done: Path, instead: Callable[..., None]):
    def talk(ctx: Any) -> Goto:
        ctx.state["price"] = ctx.call(replay_look, order="1042")
        ctx.messages.add("agent", "Who knows the price?")
        return Goto(charge)

    def end(ctx: Any) -> Complete:
        ctx.state["at"], ctx.state["chance"] = ctx.now(), ctx.random.random()
        return Complete({"paid": ctx.wait_signal("paid")})

    instead("price", talk)
    instead("settle", end)
    told, _ = replayed(done)
    assert "a message differs from the one recorded at its place" in told
    assert "the run completed; the code of today completes with another result" in told


def test_a_run_that_waits_is_executed_up_to_its_wait(worker: RunWorker, tmp_path: Path):
    run = services.start(factories.SYSTEM, "t_replay", {}).run
    until(run, "waiting")
    told, error = replayed(exported(run, tmp_path))
    assert "= visit 3 settle: as recorded: it waits for signal paid" in told and error == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as a bundle"),
        ("[]", "cannot be read as a bundle"),
        ('{"about": {"format": "agentops bundle", "version": 2}}', "this reads version 1"),
        ('{"about": {"format": "agentops bundle", "version": 1}, "run": {}}', "cannot be read as a bundle"),
    ],
)
def test_what_is_no_bundle_is_said_to_be_none(tmp_path: Path, text: str, says: str):
    path = tmp_path / "bundle.json"
    path.write_text(text)
    assert says in replayed(path)[1]
    assert "No such file" in replayed(tmp_path / "none.json")[1]


def test_a_workflow_of_an_app_that_is_not_there_is_no_difference_of_code(done: Path):
    told = json.loads(done.read_text())
    told["run"]["workflow"] = "elsewhere"
    done.write_text(json.dumps(told))
    lines, error = replayed(done)
    assert lines == "" and "'elsewhere'" in error and "AGENTOPS_APPS" in error


def test_what_people_may_not_see_is_not_in_a_bundle_and_its_visit_is_not_executed(done: Path):
    told = json.loads(done.read_text())
    assert not [key for rows in (told["run"], *told["operations"]) for key in rows if "sealed" in key]
    told["operations"][0]["hidden"] = ["result"]
    done.write_text(json.dumps(told))
    assert (
        "· visit 1 price: not executed: what people may not see is not in the bundle (replay_look)"
        in replayed(done)[0]
    )


def test_a_damaged_history_is_no_bundle(done: Path):
    told = json.loads(done.read_text())
    told["attempts"][-1]["state_after"] = {"$agentops": "set", "v": {"a": 1}}
    told["attempts"] = told["attempts"][-1:]
    done.write_text(json.dumps(told))
    assert "cannot be read as a bundle" in replayed(done)[1]
