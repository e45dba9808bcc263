"""Settlement webhooks: signed, sent until answered, and as unruly as asked."""

from collections.abc import Iterator
from decimal import Decimal

import httpx
import pytest

from agentops.sandbox.client import SandboxClient, SandboxLedger
from tests.harness.waiting import wait_until
from tests.sandbox.process import Receiver, SandboxProcess


@pytest.fixture(scope="module")
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """This module's own, since its target stays set."""
    process = SandboxProcess(tmp_path_factory.mktemp("sandbox"), "--settle-delay", "0.05")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def receiver(ledger: SandboxLedger, receiver: Receiver) -> Receiver:
    ledger.send_webhooks_to(receiver.url)
    return receiver


def test_a_settled_refund_is_announced_with_what_its_request_said(
    client: SandboxClient, ledger: SandboxLedger, receiver: Receiver
) -> None:
    receipt = client.refund("1042", Decimal("5.00"), key="k-1", correlation="c-1", metadata={"run_id": "r-1"})
    assert receipt["status"] == "pending"
    wait_until(lambda: ledger.summary().webhooks_delivered, 10, "the webhook was answered")
    assert receiver.received[0]["type"] == "refund.settled"
    assert receiver.received[0]["data"] == {
        "refund_id": receipt["id"],
        "order_id": "1042",
        "amount": "5.00",
        "currency": "EUR",
        "correlation": "c-1",
        "run_id": "r-1",
    }
    assert client.find_refunds(id=receipt["id"])[0]["status"] == "settled"


def test_a_webhook_is_sent_again_under_its_id_until_it_is_answered(
    client: SandboxClient, ledger: SandboxLedger, receiver: Receiver
) -> None:
    receiver.answers = [500, 404]
    client.refund("1", Decimal(1))
    wait_until(lambda: ledger.summary().webhooks_delivered, 15, "the webhook was answered 2xx")
    assert len(receiver.message_ids) == 3
    assert len(set(receiver.message_ids)) == 1
    assert [(delivery.attempts, delivery.last_outcome) for delivery in ledger.deliveries()] == [
        (3, "answered 204")
    ]


def test_an_asked_for_duplicate_carries_the_same_id(
    client: SandboxClient, ledger: SandboxLedger, receiver: Receiver
) -> None:
    client.refund("1", Decimal(1), fault="webhook_duplicate")
    wait_until(lambda: ledger.summary().webhooks_delivered == 2, 10, "both webhooks were answered")
    assert len(receiver.message_ids) == 2
    assert len(set(receiver.message_ids)) == 1


def test_a_repeated_request_announces_nothing_new(
    client: SandboxClient, ledger: SandboxLedger, receiver: Receiver
) -> None:
    for _ in range(3):
        client.refund("1", Decimal(1), key="k-1")
    assert len(ledger.deliveries(order_id="1")) == 1


def test_out_of_order_lets_a_later_refund_pass(
    client: SandboxClient, ledger: SandboxLedger, receiver: Receiver
) -> None:
    client.refund("first", Decimal(1), fault="webhook_out_of_order")
    client.refund("second", Decimal(1))
    wait_until(lambda: ledger.summary().webhooks_delivered == 2, 10, "both webhooks were answered")
    assert receiver.orders == ["second", "first"]


def test_an_early_webhook_arrives_before_the_answer_to_its_request(
    client: SandboxClient, receiver: Receiver
) -> None:
    client.refund("1", Decimal(1), fault="webhook_early")
    assert receiver.orders == ["1"]


def test_webhooks_wait_for_a_target(mortal: SandboxProcess, receiver: Receiver) -> None:
    with SandboxClient(mortal.url) as client, SandboxLedger(mortal.url) as ledger:
        client.refund("1", Decimal(1), fault="webhook_early")
        assert ledger.summary().webhooks_pending == 1
        ledger.send_webhooks_to(receiver.url)
    wait_until(lambda: receiver.orders == ["1"], 10, "the webhook arrived")


def test_webhooks_leave_this_machine_never(ledger: SandboxLedger) -> None:
    for url in (
        "http://192.0.2.1/",
        "https://127.0.0.1/",
        "http://example.com",
        "http://[",
        "http://127.0.0.1:x",
        "",
    ):
        with pytest.raises(httpx.HTTPStatusError):
            ledger.send_webhooks_to(url)


def test_deliveries_go_on_after_a_kill_of_the_sandbox(
    sandbox: SandboxProcess, client: SandboxClient, ledger: SandboxLedger, receiver: Receiver
) -> None:
    receiver.answers = [503] * 5
    for number in range(5):
        client.refund(str(number), Decimal(1), key=f"k-{number}")
    wait_until(lambda: receiver.received, 10, "one webhook was tried")
    sandbox.kill()
    receiver.answers = []
    sandbox.start()
    wait_until(lambda: ledger.summary().webhooks_pending == 0, 15, "all webhooks were answered")
    assert ledger.summary().counts == {"refund": 5}
    assert set(receiver.orders) == {"0", "1", "2", "3", "4"}
