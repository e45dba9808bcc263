"""Why a run is not moving: the sentence, its kind, and which runs are found by it."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from runs import clock, selectors, services
from runs.models import Attempt, Run
from runs.models.operation import Kind, OpStatus
from runs.pages import reasons
from runs.pages.reasons import Reason
from runs.states import TERMINAL, AttentionKind, Hold, Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db


def attempt(run: Run, number: int = 1, error: str = "") -> Attempt:
    now = clock.now()
    return Attempt.objects.create(
        run_id=run.pk,
        step_seq=run.step_seq,
        attempt_no=number,
        epoch=number,
        step=run.step,
        outcome=Outcome.FAILED,
        started_at=now,
        ended_at=now,
        error=error,
    )


def later() -> dict[str, Any]:
    at = clock.now() + timedelta(hours=1)
    return {"wake_at": at, "sort_at": at}


def test_every_unfinished_run_says_why_it_is_not_moving_and_a_finished_one_says_nothing():
    for status in Status:
        why = reasons.why(factories.run(status))
        assert bool(why.sentence) == bool(why.kind) == (status not in TERMINAL), status


def test_a_due_run_says_whether_anybody_is_there_to_take_it():
    run = factories.run()
    assert "no live worker looks at queue default" in reasons.why_not_moving(run)
    factories.worker(beats=False)
    assert "no live worker" in reasons.why_not_moving(run)
    factories.worker()
    assert reasons.why_not_moving(run).startswith("it is due, and the next free worker takes it")


def test_a_run_that_is_due_later_says_when():
    given = later()
    why = reasons.why(factories.run(**given))
    assert why.next_at == why.until == given["wake_at"]
    assert str(why) == f"step pack is to begin later; until {given['wake_at']:%Y-%m-%d %H:%M:%S} UTC"


def test_a_parked_run_says_who_paused_its_workflow_and_why():
    services.pause_workflow(factories.admin("ada"), "parcel", reason="provider is down")
    told = reasons.why_not_moving(factories.run(held_by=Hold.PAUSED))
    assert told == "workflow parcel is paused by ada (provider is down); it goes on when somebody resumes it"


@pytest.mark.parametrize(
    ("capabilities", "told"),
    [
        ([], "none has any step of parcel"),
        (["other@2/ship"], "none has any step of parcel"),
        (["parcel@1/ship", "parcel@2/pack", "parcel@10/pack"], "known workers have version 1, 2, 10"),
        (["parcel@3/pack"], "known workers have other steps of version 3"),
        (["parcel@3/pack", "parcel@2/ship"], "known workers have other steps of version 3 and version 2"),
    ],
)
def test_for_want_of_a_capable_worker_it_says_what_is_needed_and_what_workers_have(capabilities, told):
    factories.worker(capabilities=capabilities)
    factories.worker(beats=False, capabilities=["parcel@9/ship"])
    run = factories.run(held_by=Hold.NO_CAPABLE_WORKER, version=3, step="ship")
    assert reasons.why_not_moving(run) == (
        f"no live worker can execute step ship of parcel version 3 ({told}); it goes on when one starts"
    )


def test_what_workers_have_is_said_with_what_they_call_their_code():
    for code in ("shop 1.1", "shop 1.0", ""):
        factories.worker(capabilities=["parcel@2/ship"], code_version=code)
    run = factories.run(held_by=Hold.NO_CAPABLE_WORKER, version=3, step="ship")
    told = reasons.why_not_moving(run)
    assert "(known workers have version 2, in code shop 1.0, shop 1.1)" in told


def test_a_waiting_run_names_what_it_waits_for():
    run = factories.run(Status.WAITING)
    until = clock.now() + timedelta(minutes=5)
    factories.signal_wait(run, correlation="tx-1", expires_at=until)
    factories.operation(run, Kind.TIMER, OpStatus.OPEN, name="", expires_at=until + timedelta(hours=1))
    why = reasons.why(run)
    assert why.sentence == "the signal paid for tx-1 has not come and its timer runs"
    assert (why.kind, why.until) == (Reason.SIGNAL, until)


def test_an_approval_is_named_with_who_may_decide_and_its_limit():
    approval = factories.approval()
    approval.run.refresh_from_db()
    why = reasons.why(approval.run)
    assert why.sentence == "it needs approval of book_courier by operators or admins"
    assert why.next_at == why.until == approval.expires_at
    assert why.url == f"/approvals/{approval.pk}/"


def test_an_approval_by_several_says_by_how_many():
    approval = factories.approval()
    approval.requirement |= {"votes": 2, "groups": ["refunds"]}
    approval.save()
    assert "by refunds (2 votes)" in reasons.why_not_moving(Run.objects.get(pk=approval.run_id))


def test_a_retrying_run_says_how_often_it_failed_of_how_many_and_with_what():
    run = factories.run(Status.RETRYING, failures=2)
    attempt(run, 1, "first")
    attempt(run, 2, "503 from the provider\nwith more")
    assert reasons.why_not_moving(run).startswith(
        "step pack failed 2 of 5 times (503 from the provider with more) and backs off; until "
    )
    services.set_limits(factories.admin(), "step", "parcel/pack", max_attempts=9)
    assert "2 of 9 times" in reasons.why_not_moving(run)


def test_a_run_in_the_back_off_of_a_tool_names_the_tool():
    run = factories.run(Status.RETRYING, failures=0)
    factories.operation(run, Kind.EFFECT, OpStatus.RETRY, tries=2, error="429")
    assert reasons.why_not_moving(run).startswith("book_courier failed 2 of 5 times (429) and backs off")


def test_a_running_run_says_who_has_it_when_that_last_gave_a_sign_of_life_and_until_when():
    run = factories.run(Status.RUNNING)
    told = reasons.why_not_moving(run)
    assert "(host, process 1) executes step pack, attempt 1; last beat" in told and "next look at" in told
    run.cancel_requested_at, run.cancel_requested_by = clock.now(), "sam"
    assert "cancelled by sam" in reasons.why_not_moving(run)


def test_a_running_run_whose_worker_is_gone_says_so():
    orphan = factories.run(Status.RUNNING, worker_id=factories.worker(reaped=True).pk)
    assert "has ended" in reasons.why_not_moving(orphan)
    silent = factories.run(Status.RUNNING, worker_id=factories.worker(beats=False).pk)
    assert "gives no sign of life" in reasons.why_not_moving(silent)


@pytest.mark.parametrize("kind", list(AttentionKind))
def test_attention_says_what_is_asked_of_a_person(kind):
    told = reasons.why_not_moving(factories.run(Status.ATTENTION, attention_kind=kind))
    assert "somebody has to" in told or "somebody decides" in told


def test_a_cancelled_run_that_is_due_is_not_said_to_have_no_worker():
    run = factories.run(Status.CANCELLING, wake_at=clock.now() - timedelta(seconds=1))
    assert "no live worker" in str(reasons.why(run))
    factories.worker(queues=[run.queue])
    assert str(reasons.why(run)).startswith("it is due, and the next free worker takes it")


def test_the_reasons_of_many_runs_take_a_fixed_number_of_queries(django_assert_max_num_queries):
    for _ in range(3):
        for status in Status:
            run = factories.run(status)
            if status == Status.WAITING:
                factories.signal_wait(run)
                factories.approval(run)
    everything = list(selectors.runs())
    with django_assert_max_num_queries(6):
        told = reasons.of_all(everything)
    assert len(told) == len(everything)


# --- finding runs by it --------------------------------------------------------------------------------------------------


def child_wait() -> Run:
    run = factories.run(Status.WAITING)
    factories.operation(run, Kind.CHILD, OpStatus.OPEN, name="f_child", children=3)
    return run


def timer_wait() -> Run:
    run = factories.run(Status.WAITING)
    factories.operation(run, Kind.TIMER, OpStatus.OPEN, name="")
    return run


#: A run for each reason; a worker that looks at queue `default` beats.
BY_REASON: dict[Reason, Callable[[], Run]] = {
    Reason.LATER: lambda: factories.run(**later()),
    Reason.DUE: lambda: factories.run(),
    Reason.NO_WORKER: lambda: factories.run(queue="nobody"),
    Reason.LEASE: lambda: factories.run(Status.RUNNING),
    Reason.LOST: lambda: factories.run(Status.RUNNING, worker_id=factories.worker(beats=False).pk),
    Reason.BACK_OFF: lambda: factories.run(Status.RETRYING),
    Reason.APPROVAL: lambda: Run.objects.get(pk=factories.approval().run_id),
    Reason.SIGNAL: lambda: factories.signal_wait().run,
    Reason.TIMER: timer_wait,
    Reason.CHILD: child_wait,
    Reason.CANCELLING: lambda: factories.run(Status.CANCELLING, **later()),
    **{Reason(hold): partial(factories.run, held_by=hold) for hold in Hold},
    **{Reason(kind): partial(factories.run, Status.ATTENTION, attention_kind=kind) for kind in AttentionKind},
}


def test_a_run_is_found_by_the_reason_that_its_sentence_tells_and_by_no_other():
    factories.worker()
    made = {kind: make().pk for kind, make in BY_REASON.items()}
    assert set(made) == set(Reason), "a reason without a run here"
    told = reasons.of_all(list(selectors.runs()))
    for kind, run_id in made.items():
        assert told[run_id].kind == kind
        assert [run.pk for run in reasons.filter_by(selectors.runs(), kind)] == [run_id], kind


def test_finished_runs_have_no_reason():
    for status in TERMINAL:
        factories.run(status)
    assert not [kind for kind in Reason if reasons.filter_by(selectors.runs(), kind)]


def test_a_run_that_waits_for_two_things_is_found_by_either():
    run = timer_wait()
    factories.approval(run)
    for kind in (Reason.APPROVAL, Reason.TIMER):
        assert [one.pk for one in reasons.filter_by(selectors.runs(), kind)] == [run.pk]
    assert reasons.why(run).kind == Reason.APPROVAL


def test_what_is_no_reason_finds_nothing():
    factories.run()
    assert not reasons.filter_by(selectors.runs(), "mood").exists()


def test_a_page_of_runs_that_wait_for_a_signal_reads_the_index_in_their_order():
    query = reasons.filter_by(selectors.runs(), Reason.SIGNAL)[:51]
    sql, parameters = query.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {sql}", parameters)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "operation_open_by_kind" in plan, plan
