"""Every sample workflow, run to its end by a worker against the sandbox."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from agentops.demo import stand_in, tools
from agentops.demo.models import SyncedPage
from agentops.demo.workflows import flaky_report
from agentops.sandbox.client import SandboxLedger
from approvals.models import Approval
from approvals.services import decide
from runs import clock, codec, services
from runs.lifecycle import Actor
from runs.models import Attempt, Operation, Run
from runs.models.operation import Kind
from tests import factories
from tests.harness.processes import Processes
from tests.runs.engine.conftest import until
from tests.sandbox.process import SECRET

BROKEN = "The lamp arrived broken. Please refund 12.50 EUR."
LOST = "My parcel never arrived."


def begin(workflow: str, **given: Any) -> Run:
    return services.start(Actor("system"), workflow, given).run


def vote(run: Run, name: str, verdict: str = "approve") -> None:
    approval = Approval.objects.get(run=run, state="open")
    decide(
        factories.operator(name),
        approval.pk,
        version=approval.version,
        digest=approval.digest,
        verdict=verdict,
        reason="because",
    )


def told(world: SandboxLedger, run: Run) -> str:
    """The one mail that the customer of the run's order got."""
    (mail,) = world.mails(order_id=codec.decode(run.input)["order_id"])
    return str(mail["text"])


def dear_order() -> str:
    """An order that costs more than may be refunded without asking."""
    for number in range(1000, 1100):
        order = tools.get_order(str(number), timeout=5)
        if order.amount > 150 and order.status == "delivered":
            return str(number)
    raise AssertionError("the sandbox sells nothing dear")


# --- refund_request ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_a_small_refund_is_paid_settled_and_mailed_without_asking_anybody(world: SandboxLedger):
    run = until(begin("refund_request", order_id="1042", message=BROKEN))
    assert run.status == "completed", run.reason
    assert codec.decode(run.result)["amount"] == Decimal("12.50")
    assert (run.subject, set(run.external)) == ("order 1042", {"refund", "return label", "mail"})
    assert world.summary().counts == {"refund": 1, "charge": 1, "mail": 1}
    assert world.summary().repeated == []
    assert "12.50 EUR" in told(world, run)
    model = Operation.objects.get(run=run, kind=Kind.MODEL)
    assert model.name == stand_in.NAME and "stand-in" in str(model.result)


@pytest.mark.usefixtures("worker")
def test_a_large_refund_waits_for_an_operator_who_reads_why(world: SandboxLedger):
    run = until(begin("refund_request", order_id=dear_order(), message=LOST), "waiting")
    approval = Approval.objects.get(run=run)
    assert approval.title.startswith("Refund ") and "parcel was lost" in approval.why
    assert "stand-in" in approval.why
    assert world.count(kind="refund") == 0
    vote(run, "olivia")
    run = until(run)
    assert (run.status, world.count(kind="refund"), world.count(kind="charge")) == ("completed", 1, 0)


@pytest.mark.usefixtures("worker")
def test_an_approved_refund_is_not_asked_about_again_while_the_label_takes_its_time(world: SandboxLedger):
    world.script("POST /charges", "429:0.1", "429:0.1")
    run = until(begin("refund_request", order_id=dear_order(), message="It arrived broken."), "waiting")
    vote(run, "olivia")
    run = until(run, timeout=30)
    assert run.status == "completed", run.reason
    assert world.summary().counts == {"refund": 1, "charge": 1, "mail": 1}


@pytest.mark.usefixtures("worker")
def test_a_rejected_refund_is_not_paid_and_the_customer_is_told(world: SandboxLedger):
    run = until(begin("refund_request", order_id=dear_order(), message=LOST), "waiting")
    vote(run, "olivia", "reject")
    run = until(run)
    assert (run.status, world.count(kind="refund")) == ("completed", 0)
    assert "cannot refund" in told(world, run)


@pytest.mark.usefixtures("worker")
def test_a_message_without_a_reason_gets_an_answer_and_no_money(world: SandboxLedger):
    number = next(n for n in range(1000, 1100) if tools.get_order(str(n), timeout=5).status == "delivered")
    run = until(begin("refund_request", order_id=str(number), message="I like blue better."))
    assert (run.status, world.count(kind="refund"), world.count(kind="mail")) == ("completed", 0, 1)


@pytest.mark.usefixtures("worker")
def test_a_settlement_that_never_comes_is_looked_up_and_reported(world: SandboxLedger):
    world.script("POST /refunds", "webhook_out_of_order")
    world.send_webhooks_to("http://127.0.0.1:9/nowhere")
    run = until(
        begin("refund_request", order_id="1042", message=BROKEN),
        "waiting",
        also=lambda run: Operation.objects.filter(run=run, kind=Kind.SIGNAL).exists(),
    )
    clock.shift(timedelta(hours=7))
    run = until(run)
    assert run.status == "completed", run.reason
    assert world.summary().counts["mail"] == 1
    assert Operation.objects.filter(run=run, name="is_settled", status="done").exists()


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("fault", ["500_after", "close_after", "close_before", "503", "429:0.1"])
def test_refund_and_label_happen_once_whatever_becomes_of_the_answer(world: SandboxLedger, fault: str):
    world.script("POST /refunds", fault)
    world.script("POST /charges", fault if fault.endswith("_after") or fault == "429:0.1" else "none")
    run = until(begin("refund_request", order_id="1042", message=BROKEN), timeout=30)
    assert run.status == "completed", run.reason
    assert world.summary().counts == {"refund": 1, "charge": 1, "mail": 1}


@pytest.mark.usefixtures("worker")
def test_a_mail_that_is_cut_asks_a_person_who_answers_from_the_providers_records(world: SandboxLedger):
    world.script("SMTP", "close_after")
    run = until(begin("refund_request", order_id="1042", message=BROKEN), "attention", timeout=30)
    operation = Operation.objects.get(run=run, status="pending")
    (mail,) = world.entries(kind="mail", key=str(operation.provider_key))
    services.answer_doubt(
        factories.operator("olivia"),
        operation.pk,
        happened=True,
        reference=str(mail.reference),
        reason="seen",
    )
    run = until(run)
    assert (run.status, run.external["mail"]) == ("completed", mail.reference)
    assert world.count(kind="mail") == 1


@pytest.mark.usefixtures("worker")
def test_a_mail_server_that_is_busy_leaves_no_doubt(
    world: SandboxLedger,
):
    world.script("SMTP", "451")
    run = until(begin("refund_request", order_id="1042", message=BROKEN), timeout=30)
    assert (run.status, world.count(kind="mail")) == ("completed", 1)


# --- access_request ----------------------------------------------------------------------------------------------------

ACCESS = {"person": "grace", "resource": "billing", "reason": "month's end"}


@pytest.mark.usefixtures("worker")
def test_access_needs_two_operators(world: SandboxLedger):
    run = until(begin("access_request", **ACCESS), "waiting")
    vote(run, "olivia")
    until(run, "waiting")
    assert world.count(kind="access") == 0
    vote(run, "omar")
    run = until(run)
    assert (run.status, world.count(kind="access")) == ("completed", 1)


@pytest.mark.usefixtures("worker")
def test_access_for_some_days_is_taken_back_by_itself(world: SandboxLedger):
    run = until(begin("access_request", for_days=2, **ACCESS), "waiting")
    for name in ("olivia", "omar"):
        vote(run, name)
    until(run, "waiting", also=lambda run: run.step == "expire")
    clock.shift(timedelta(days=3))
    run = until(run)
    assert [entry.answer["role"] for entry in world.entries(kind="access")] == ["reader", "none"]


@pytest.mark.usefixtures("worker")
def test_a_cancel_takes_access_back(world: SandboxLedger):
    run = until(begin("access_request", for_days=2, **ACCESS), "waiting")
    for name in ("olivia", "omar"):
        vote(run, name)
    until(run, "waiting", also=lambda run: run.step == "expire")
    services.cancel(factories.support("sam"), run.pk, reason="left the company")
    run = until(run)
    assert run.status == "cancelled", run.reason
    assert [entry.answer["role"] for entry in world.entries(kind="access")] == ["reader", "none"]


@pytest.mark.usefixtures("worker")
def test_a_rejected_access_is_a_result_and_no_failure(world: SandboxLedger):
    run = until(begin("access_request", **ACCESS), "waiting")
    vote(run, "olivia", "reject")
    run = until(run)
    assert (run.status, world.count(kind="access")) == ("completed", 0)
    assert codec.decode(run.result)["granted"] is False


# --- nightly_sync ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_the_sync_keeps_every_page_once_however_often_the_provider_fails(world: SandboxLedger):
    world.script("GET /pages", "503", "none", "429:0.1", "close_before")
    run = until(begin("nightly_sync", pages=4), timeout=30)
    assert (run.status, run.result) == ("completed", {"pages": 4})
    pages = SyncedPage.objects.filter(run_id=run.pk).order_by("number")
    assert [page.number for page in pages] == [1, 2, 3, 4]
    assert len({item["sku"] for page in pages for item in page.items}) == 80


# --- order_audit -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_the_audit_adds_up_what_its_children_found_and_names_those_that_failed(world: SandboxLedger):
    run = until(begin("order_audit", first=1000, orders=12), timeout=30)
    assert run.status == "completed", run.reason
    orders = [tools.get_order(str(number), timeout=5) for number in range(1000, 1012)]
    lost = [order.id for order in orders if order.status == "lost_in_transit"]
    assert codec.decode(run.result) == {
        "checked": 12 - len(lost),
        "failed": len(lost),
        "amount": sum(order.amount for order in orders if order.status != "lost_in_transit"),
    }
    failed = Run.objects.filter(parent_id=run.pk, status="failed").order_by("child_index")
    assert [child.input["order_id"] for child in failed] == lost != []


# --- flaky_report ------------------------------------------------------------------------------------------------------

ENDINGS = {
    "works": ("completed", "", ""),
    "provider_down": ("failed", "exhausted", "503"),
    "bad_data": ("failed", "exhausted", "20 prices, but the report has room for 12"),
    "refused": ("failed", "not_retryable", "404"),
    "gives_up": ("failed", "declared", "nothing to report"),
}


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_report_ends_as_it_was_told_to(world: SandboxLedger, ending: str):
    run = until(begin("flaky_report", ending=ending), timeout=30)
    status, kind, words = ENDINGS[ending]
    assert (run.status, run.failure_kind) == (status, kind), run.reason
    assert words in run.reason


@pytest.mark.usefixtures("worker")
def test_bad_data_leaves_a_traceback_that_names_the_line(world: SandboxLedger):
    run = until(begin("flaky_report", ending="bad_data"), timeout=30)
    last = Attempt.objects.filter(run_id=run.pk).latest("attempt_no")
    assert "workflows.py" in last.traceback and "ValueError" in last.traceback


@pytest.mark.usefixtures("worker")
def test_a_report_that_comes_too_late_ends_at_its_deadline(world: SandboxLedger):
    run = until(begin("flaky_report", ending="too_late"), "waiting")
    assert flaky_report.deadline is not None
    clock.shift(flaky_report.deadline)
    run = until(run)
    assert (run.status, run.failure_kind) == ("failed", "deadline")


def test_a_report_that_kills_its_process_ends_in_the_dead_letter(
    world: SandboxLedger, processes: Processes, settings
):
    run = begin("flaky_report", ending="kills_its_process")
    processes.worker(
        processes=1,
        env={"AGENTOPS_SANDBOX_URL": settings.AGENTOPS_SANDBOX_URL, "AGENTOPS_WEBHOOK_SECRET": SECRET},
    )
    run = until(run, timeout=60)
    assert (run.status, run.failure_kind) == ("failed", "crashed"), run.reason
