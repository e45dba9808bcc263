"""Misbehaviour: asked for by a call, scripted, or at random; and what the ledger says afterwards."""

import time
from decimal import Decimal

import httpx
import pytest

from agentops.sandbox.client import SandboxClient, SandboxLedger
from agentops.sandbox.faults import UnknownFault, rates_from
from tests.harness.waiting import wait_until
from tests.sandbox.process import SandboxProcess

AMOUNT = Decimal("9.90")


def status_of(client: SandboxClient, fault: str | None = None, key: str | None = None) -> int:
    """The status that a refund is answered with."""
    try:
        client.refund("1", AMOUNT, key=key, fault=fault)
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


@pytest.mark.parametrize("fault", ["500", "503", "429", "close_before", "timeout_before:0.01"])
def test_a_fault_before_the_work_leaves_nothing_behind(
    client: SandboxClient, ledger: SandboxLedger, fault: str
) -> None:
    with pytest.raises(httpx.HTTPError):
        client.refund("1", AMOUNT, key="k-1", fault=fault)
    assert ledger.count(kind="refund") == 0
    assert [row["faults"] for row in ledger.requests(key="k-1")] == [fault.partition(":")[0]]
    client.refund("1", AMOUNT, key="k-1")
    assert ledger.count(kind="refund") == 1


@pytest.mark.parametrize("fault", ["500_after", "close_after", "timeout_after:0.01"])
def test_a_fault_after_the_work_hides_that_it_was_done(
    client: SandboxClient, ledger: SandboxLedger, fault: str
) -> None:
    with pytest.raises(httpx.HTTPError):
        client.refund("1", AMOUNT, key="k-1", fault=fault)
    assert ledger.count(kind="refund", key="k-1") == 1
    receipt = client.refund("1", AMOUNT, key="k-1")
    assert (
        receipt["id"]
        == ledger.entries(kind="refund")[0].answer["id"]
        == client.find_refunds(key="k-1")[0]["id"]
    )


def test_a_client_that_gives_up_on_a_timeout_finds_the_work_done(
    sandbox: SandboxProcess, ledger: SandboxLedger
) -> None:
    with SandboxClient(sandbox.url, timeout_s=0.3) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.charge("invoice 1", AMOUNT, fault="timeout_after")
    assert ledger.count(kind="charge", reference="invoice 1") == 1


def test_latency_ends_without_work_when_the_client_hangs_up_and_late_works_on(
    sandbox: SandboxProcess, ledger: SandboxLedger
) -> None:
    with SandboxClient(sandbox.url, timeout_s=0.3) as impatient:
        with pytest.raises(httpx.ReadTimeout):
            impatient.charge("given up", AMOUNT, fault="latency:0.8")
        with pytest.raises(httpx.ReadTimeout):
            impatient.charge("landed late", AMOUNT, fault="late:1")
    assert ledger.count(kind="charge") == 0
    wait_until(lambda: ledger.count(reference="landed late"), 10, "the late charge is in the ledger")
    assert ledger.count(reference="given up") == 0


def test_latency_only_delays(client: SandboxClient, ledger: SandboxLedger) -> None:
    began = time.monotonic()
    client.refund("1", AMOUNT, fault="latency:0.2")
    assert time.monotonic() - began >= 0.2
    assert ledger.count(kind="refund") == 1


def test_too_many_requests_says_when_to_come_back(sandbox: SandboxProcess) -> None:
    answer = httpx.get(f"{sandbox.url}/orders/1", headers={"X-Sandbox-Fault": "429:1.5"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")


def test_a_fault_may_stand_in_the_body_and_does_not_change_its_digest(sandbox: SandboxProcess) -> None:
    body = {"order_id": "1", "amount": "2.00"}
    headers = {"Idempotency-Key": "k-1"}
    failed = httpx.post(f"{sandbox.url}/refunds", json=body | {"sandbox_fault": "500_after"}, headers=headers)
    again = httpx.post(f"{sandbox.url}/refunds", json=body, headers=headers)
    assert (failed.status_code, again.status_code) == (500, 200)
    assert again.headers["Idempotency-Replayed"] == "true"


def test_a_fault_that_means_nothing_is_refused(sandbox: SandboxProcess, ledger: SandboxLedger) -> None:
    for fault in ("tiemout", "451", "503:2", "latency:-1", "latency:nan"):
        answer = httpx.post(
            f"{sandbox.url}/refunds",
            json={"order_id": "1", "amount": "1"},
            headers={"X-Sandbox-Fault": fault},
        )
        assert answer.status_code == 422, fault
    answer = httpx.get(f"{sandbox.url}/orders/1", headers={"X-Sandbox-Fault": "webhook_duplicate"})
    assert answer.status_code == 422
    assert ledger.summary().requests == 0


def test_a_script_is_used_up_in_order_by_its_endpoint_alone(
    client: SandboxClient, ledger: SandboxLedger
) -> None:
    ledger.script("POST /refunds", "503", "none", "500_after")
    client.get_order("1")
    assert [status_of(client) for _ in range(4)] == [503, 200, 500, 200]
    assert ledger.count(kind="refund") == 3


def test_what_a_call_asks_for_comes_before_the_script(client: SandboxClient, ledger: SandboxLedger) -> None:
    ledger.script("/refunds", "503")
    assert status_of(client, fault="none") == 200
    assert status_of(client) == 503


def test_random_faults_repeat_themselves_with_their_seed(
    client: SandboxClient, ledger: SandboxLedger
) -> None:
    def thirty_calls() -> list[int]:
        ledger.reset()
        ledger.fault_rates({"503": 0.3, "500_after": 0.2}, endpoint="POST /refunds", seed=7)
        return [status_of(client, key=f"k-{number}") for number in range(30)]

    first = thirty_calls()
    assert first == thirty_calls()
    assert {200, 500, 503} == set(first)
    assert ledger.count(kind="refund") == 30 - first.count(503)
    ledger.fault_rates({}, endpoint="POST /refunds")
    assert {status_of(client) for _ in range(10)} == {200}


def test_plans_survive_the_death_of_the_sandbox(mortal: SandboxProcess) -> None:
    with SandboxLedger(mortal.url) as ledger, SandboxClient(mortal.url) as client:
        ledger.script("POST /refunds", "503", "500")
        ledger.fault_rates({"429": 1}, endpoint="POST /refunds")
        assert status_of(client) == 503
    mortal.kill()
    mortal.start()
    with SandboxClient(mortal.url) as client:
        assert [status_of(client) for _ in range(2)] == [500, 429]


@pytest.mark.parametrize(
    "plan",
    [
        {"503": 0.6, "500": 0.6},
        {"503": -0.1},
        {"503": True},
        {"503": "often"},
        {"sunshine": 0.1},
        {"503": 0.1, "endpoint": "POST /weather"},
        {"451": 0.1, "endpoint": "GET /orders"},
        {"503": 0.1, "seed": "x"},
        {"503": 0.1, "seed": 2**63},
    ],
)
def test_rates_that_make_no_sense_are_refused(plan: dict[str, object]) -> None:
    with pytest.raises(UnknownFault):
        rates_from(plan)
