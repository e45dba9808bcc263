"""What each endpoint promises, and what it does not."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import httpx
import pytest

from agentops.sandbox.client import Repeat, SandboxClient, SandboxLedger
from tests.sandbox.process import SandboxProcess


def refused(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        call()
    return caught.value.response.status_code, caught.value.response.json()["detail"]


def at_once[T](times: int, work: Callable[[int], T]) -> list[T]:
    """Call `work` from that many threads that all start together."""
    barrier = threading.Barrier(times)

    def start(number: int) -> T:
        barrier.wait(10)
        return work(number)

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(start, range(times)))


def test_every_order_exists_and_stays_the_same(client: SandboxClient) -> None:
    order = client.get_order("1042")
    assert order == client.get_order("1042")
    assert order != client.get_order("1043")
    total = sum(Decimal(item["price"]) * item["quantity"] for item in order["items"])
    assert Decimal(order["amount"]) == total


def test_orders_are_found_by_the_address_of_their_customer(
    sandbox: SandboxProcess, client: SandboxClient
) -> None:
    order = client.get_order("1042")
    found = httpx.get(f"{sandbox.url}/orders", params={"email": order["email"]}).json()["orders"]
    assert found == [order]
    assert httpx.get(f"{sandbox.url}/orders", params={"email": "who@example.org"}).json() == {"orders": []}
    listed = httpx.get(f"{sandbox.url}/orders", params={"first": 1041, "limit": 2}).json()["orders"]
    assert [entry["id"] for entry in listed] == ["1041", "1042"]


def test_a_refund_with_the_same_key_happens_once_and_is_answered_alike(
    client: SandboxClient, ledger: SandboxLedger
) -> None:
    first = client.refund("1042", Decimal("12.50"), key="k-1", correlation="run 7")
    second = client.refund("1042", Decimal("12.50"), key="k-1", correlation="run 7")
    assert first["id"] == second["id"]
    assert ledger.count(kind="refund", key="k-1") == 1
    assert len(ledger.requests(key="k-1")) == 2
    assert [found["id"] for found in client.find_refunds(key="k-1")] == [first["id"]]
    assert [found["id"] for found in client.find_refunds(order_id="1042")] == [first["id"]]
    assert client.find_refunds(key="other") == []


def test_another_body_under_the_same_key_is_refused(client: SandboxClient, ledger: SandboxLedger) -> None:
    client.refund("1042", Decimal("12.50"), key="k-1")
    status, _ = refused(lambda: client.refund("1042", Decimal("13.50"), key="k-1"))
    assert status == 422
    assert ledger.count(kind="refund") == 1


def test_fifty_refunds_at_once_with_one_key_are_one_refund(
    sandbox: SandboxProcess, ledger: SandboxLedger
) -> None:
    def refund(_: int) -> str:
        with SandboxClient(sandbox.url, timeout_s=30) as client:
            return str(client.refund("1042", Decimal("12.50"), key="same")["id"])

    assert len(set(at_once(50, refund))) == 1
    assert ledger.count(kind="refund") == 1
    assert ledger.summary().requests == 50
    assert ledger.summary().repeated == []


def test_a_charge_ignores_its_key_and_the_ledger_says_so(
    client: SandboxClient, ledger: SandboxLedger
) -> None:
    for _ in range(2):
        client.charge("invoice 9", Decimal(20), key="k-1", order_id="1042")
    assert len(client.find_charges("invoice 9")) == 2
    assert ledger.summary().counts == {"charge": 2}
    assert ledger.summary().repeated == [Repeat("charge", "key:k-1", 2)]
    assert ledger.summary().repeated_by_order == [Repeat("charge", "1042", 2)]


def test_what_a_run_does_twice_under_two_keys_counts_as_repeated(
    client: SandboxClient, ledger: SandboxLedger
) -> None:
    origin = {"run_id": "r-1", "operation": "refund"}
    client.refund("1042", Decimal(5), key="k-1", metadata=origin)
    client.refund("1042", Decimal(5), key="k-2", metadata=origin)
    client.refund("1042", Decimal(5), key="k-3", metadata={"run_id": "r-1", "operation": "second refund"})
    assert ledger.summary().repeated == [Repeat("refund", "run:r-1/refund", 2)]


def test_a_ticket_cannot_be_looked_up(
    sandbox: SandboxProcess, client: SandboxClient, ledger: SandboxLedger
) -> None:
    client.file_ticket("Parcel lost", key="k-1")
    client.file_ticket("Parcel lost", key="k-1")
    assert httpx.get(f"{sandbox.url}/tickets").status_code == 404
    assert ledger.count(kind="ticket") == 2


def test_access_is_granted_once_for_each_key(client: SandboxClient, ledger: SandboxLedger) -> None:
    first = client.grant_access("ada", "billing", "admin", key="k-1")
    assert client.grant_access("ada", "billing", "admin", key="k-1") == first
    assert client.find_grants(person="ada") == [first]
    assert client.find_grants(key="k-1") == [first]
    assert ledger.count(kind="access") == 1


def test_pages_follow_their_cursors_and_come_from_a_flaky_provider(client: SandboxClient) -> None:
    names: list[str] = []
    failures: set[int] = set()
    cursor: str | None = ""
    while cursor is not None:
        try:
            page = client.fetch_page(cursor)
        except httpx.HTTPStatusError as error:
            failures.add(error.response.status_code)
            continue
        names += [item["sku"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert len(set(names)) == len(names) == 200
    assert failures == {429, 503}
    assert refused(lambda: client.fetch_page("p99", fault="none"))[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"order_id": "1", "amount": "0"},
        {"order_id": "1", "amount": "1.001"},
        {"order_id": "1", "amount": "NaN"},
        {"order_id": "", "amount": "1"},
        {"order_id": "1", "amount": "1", "currency": "eur"},
        {"order_id": "1", "amount": "1", "colour": "red"},
        {"order_id": "\ud800", "amount": "1"},
    ],
)
def test_a_refund_that_makes_no_sense_is_refused(
    sandbox: SandboxProcess, ledger: SandboxLedger, body: dict[str, str]
) -> None:
    answer = httpx.post(f"{sandbox.url}/refunds", content=json.dumps(body))
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert ledger.summary().counts == {}


def test_a_connection_is_kept_after_any_answer(sandbox: SandboxProcess) -> None:
    with httpx.Client(base_url=sandbox.url, limits=httpx.Limits(max_connections=1)) as connection:
        streams = set()
        for method, path, content in (
            ("GET", "/orders/1", b""),
            ("POST", "/nowhere", b"body that nobody wants"),
            ("POST", "/refunds", b"no json"),
            ("POST", "/refunds", b"[1]"),
            ("GET", "/healthz", b""),
        ):
            answer = connection.request(method, path, content=content)
            streams.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
        assert len(streams) == 1


def test_a_request_under_a_foreign_host_name_is_refused(
    sandbox: SandboxProcess, ledger: SandboxLedger
) -> None:
    for host, status in (("evil.example.com", 403), ("127.0.0.1.example.com", 403), ("[", 400)):
        assert httpx.post(f"{sandbox.url}/control/reset", headers={"Host": host}).status_code == status


def test_a_client_that_knows_the_url_learns_the_mail_address(sandbox: SandboxProcess) -> None:
    assert httpx.get(f"{sandbox.url}/healthz").json()["smtp"] == f"127.0.0.1:{sandbox.smtp_port}"


def test_a_hundred_clients_work_at_once(sandbox: SandboxProcess, ledger: SandboxLedger) -> None:
    def refund(number: int) -> None:
        with SandboxClient(sandbox.url, timeout_s=30) as client:
            client.refund(str(number), Decimal(1), key=f"k-{number}")
            client.get_order(str(number))

    at_once(100, refund)
    assert ledger.summary().counts == {"refund": 100}
    assert ledger.summary().repeated_by_order == []
