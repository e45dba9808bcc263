"""Where the judge learns what happened: the sandbox, and ledgers of one's own."""

from collections.abc import Iterator

import pytest
from django.test import override_settings

from agentops.chaos.ledgers import NOT_GIVEN, CannotJudge, Ledgers, Performed
from agentops.sandbox.client import SandboxClient, SandboxLedger
from tests.chaos.app import chaos as hook
from tests.sandbox.conftest import client, ledger, sandbox, shared_sandbox

__all__ = ["client", "ledger", "sandbox", "shared_sandbox"]


@pytest.fixture(autouse=True)
def own_ledger() -> Iterator[None]:
    import tests.chaos.app.workflows  # noqa: F401

    with override_settings(AGENTOPS_APPS=["tests.chaos.app", "tests.cluster.flows"]):
        yield
    hook.PERFORMED.clear()


def test_the_sandbox_tells_key_reference_answer_and_run(ledger: SandboxLedger, client: SandboxClient):
    client.file_ticket("Late", key="k1", metadata={"run_id": "r1", "operation": "ticket"})
    (found,) = Ledgers(ledger).performed()
    assert (found.key, found.run_id) == ("k1", "r1")
    assert found.result["id"] == found.reference
    assert "ticket no. 1" in found.what


def test_a_ledger_of_ones_own_is_asked_as_well(ledger: SandboxLedger, client: SandboxClient):
    client.file_ticket("Late", key="k1")
    hook.PERFORMED[:] = ["k2", Performed("k2", reference="ref 2")]
    assert [one.key for one in Ledgers(ledger).performed()] == ["k1", "k2", "k2"]
    bare, full = Ledgers(ledger).under({"k2"})
    assert (bare.reference, bare.result, full.reference) == ("", NOT_GIVEN, "ref 2")
    assert [one.key for one in Ledgers(ledger).under(["k1", "k3"])] == ["k1"]


def test_tools_of_the_samples_and_of_apps_with_a_ledger_are_observable(ledger: SandboxLedger):
    tools = Ledgers(ledger).observable({"fax"})
    assert tools >= {"send_mail", "charge", "z_refund", "fax"}
    assert "get_order" not in tools  # changes nothing
    with override_settings(AGENTOPS_APPS=[]):
        assert "z_refund" not in Ledgers(ledger).observable()


def test_a_ledger_that_fails_is_no_proof(ledger: SandboxLedger, monkeypatch: pytest.MonkeyPatch):
    def broken() -> list[str]:
        raise OSError("no such stub")

    monkeypatch.setattr(hook, "performed_effects", broken)
    with pytest.raises(
        CannotJudge, match=r"tests.chaos.app.chaos.performed_effects failed: OSError: no such stub"
    ):
        Ledgers(ledger).performed()


def test_faults_of_requests_are_counted_by_kind(ledger: SandboxLedger, client: SandboxClient):
    client.file_ticket("Late")
    ledger.script("POST /tickets", "late:0", "late:0")
    client.file_ticket("Later")
    client.file_ticket("Latest")
    assert Ledgers(ledger).faults() == {"provider_late": 2}
    assert Ledgers(ledger).webhooks_pending() == 0
