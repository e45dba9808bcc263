"""Large states and payloads through a real worker: patches, snapshots, blobs, and what people see of them."""

import json
import zlib
from datetime import timedelta
from typing import Any

from django.db import connection

from runs import blobs, clock, codec, doctor, history
from runs.lifecycle import Actor
from runs.models import Attempt, Blob, BlobUse, Message, Operation, Run
from runs.services import receive_signal, start
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import until
from tests.runs.payloads import flows
from tests.runs.views.people import client

SYSTEM = Actor("system")


def begin(workflow: str) -> Run:
    return start(SYSTEM, workflow, {}).run


def kinds(run: Run) -> list[str]:
    """What each attempt that changed the state kept of it."""
    rows = Attempt.objects.filter(run_id=run.pk, state_after__isnull=False)
    return [
        "patch" if history.is_patch(after) else "snapshot" if blobs.is_marker(after) else "whole"
        for after in rows.order_by("step_seq", "attempt_no").values_list("state_after", flat=True)
    ]


def test_a_large_state_is_kept_as_patches_and_a_run_that_is_claimed_again_goes_on_with_it(
    worker: Any,
) -> None:
    run = until(begin("t_large"))
    assert run.status == "completed", run.reason
    assert kinds(run) == ["snapshot", *["patch"] * flows.VISITS]
    assert run.epoch == 1 + flows.VISITS // 3, "every third visit it was read back by another claim"
    assert history.is_pointer(run.state)
    states = [json.loads(text) for _, _, text in history.walk(run.pk)]
    for visit, state in enumerate(states):
        assert [d["body"].endswith("!") for d in state["documents"]] == [
            n < visit for n in range(flows.DOCUMENTS)
        ]
    assert history.displayed(run.pk, run.state) == states[-1]
    kept = Attempt.objects.filter(run_id=run.pk).values_list("state_after", flat=True)
    assert sum(len(json.dumps(after)) for after in kept) < len(codec.canonical(states[-1])) / 5


def test_an_atomic_step_may_hand_over_what_it_has_just_stored(worker: Any) -> None:
    run = until(begin("t_handing_over"))
    assert run.status == "completed", run.reason
    other = Run.objects.exclude(pk=run.pk).get()
    assert run.result == other.input
    assert blobs.is_marker(run.result)
    assert until(other).status == "completed"


def test_a_state_of_five_megabytes_is_written_once(worker: Any) -> None:
    run = until(begin("t_huge"), timeout=60)
    assert (run.status, run.result) == ("completed", [245_000] * 4 + [245_001] + [245_000] * 5), run.reason
    assert kinds(run) == ["snapshot", "patch"]
    assert history.size_of(run.state) > 4_900_000
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(pg_column_size(a.*)) FROM runs_attempt a WHERE run_id = %s", [run.pk])
        assert cursor.fetchone()[0] < 1000


def test_a_small_state_is_kept_in_full_by_the_first_attempt_of_a_claim_and_then_as_what_was_set(
    worker: Any,
) -> None:
    run = until(begin("t_small"))
    assert run.status == "completed", run.reason
    whole, sets = "whole", "patch"
    # Whole: at each claim, without a key that was there, and where nearly all of it is new.
    assert kinds(run) == [whole, sets, whole, sets, sets, whole, whole, whole, sets]
    states = [json.loads(text) for _, _, text in history.walk(run.pk)]
    assert [state["seen"] for state in states] == list(range(1, 10))
    assert [json.dumps(state.get("one")) for state in states] == [
        *["null"] * 3, "1", "true", "true", *["null"] * 3
    ]  # fmt: skip
    assert {state["note"][0] for state in states[:7]} == {"n"}
    assert {state["note"] for state in states[7:]} == {"m" * 300}
    assert states[-1] == run.state == run.result
    for seq, state in enumerate(states, 1):
        back = history.restored(run.pk, seq, 1)
        assert back is not None and back.shown == state
    fourth = client("support").get(f"/runs/{run.pk}/attempts/4/1/").content.decode()
    assert "n" * 300 in fourth and "$agentops" not in fourth


def test_a_state_that_shrinks_and_grows_again_stays_itself(worker: Any) -> None:
    run = until(begin("t_shrinking"))
    assert (run.status, run.result) == ("completed", 20_000), run.reason
    assert kinds(run) == ["snapshot", "patch", "whole", "snapshot"]
    second = [json.loads(text) for _, _, text in history.walk(run.pk)][1]
    assert second["one"] is True, "1 and True differ"


def test_large_payloads_leave_their_rows_once_and_come_back(worker: Any) -> None:
    run = begin("t_heavy")
    until(run, "waiting")
    receive_signal(SYSTEM, name="go", payload=flows.HEAVY, external_id="1", source="test", run_id=run.pk)
    until(run)
    assert run.status == "completed", run.reason
    assert blobs.is_marker(run.result)
    assert blobs.whole([run.result]) == [flows.HEAVY]
    effects = Operation.objects.filter(run=run, kind="effect")
    assert all(blobs.is_marker(e.request) and blobs.is_marker(e.result) for e in effects)
    assert [e.response for e in effects] == [None, None], "an answer is not stored twice"
    assert blobs.is_marker(Message.objects.get(run_id=run.pk).content)
    # Rows, arguments and answer: three contents, whoever refers to them.
    assert Blob.objects.count() == BlobUse.objects.filter(run_id=run.pk).count() == 3
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(pg_column_size(o.*)) FROM runs_operation o")
        assert cursor.fetchone()[0] < 1500


def test_a_payload_that_is_stored_apart_is_shown_folded_and_opened_at_its_own_address(worker: Any) -> None:
    run = begin("t_heavy")
    until(run, "waiting")
    receive_signal(SYSTEM, name="go", payload=flows.HEAVY, external_id="1", source="test", run_id=run.pk)
    until(run)
    browser, stranger = client("support"), client()
    effect = Operation.objects.filter(run=run, kind="effect").first()
    message = Message.objects.get(run_id=run.pk)
    assert effect is not None
    page = f"/runs/{run.pk}/"
    whole = {
        f"{page}?part=values": f"{page}values/result/",
        f"{page}?part=messages": f"{page}record/messages/{message.pk}/",
        f"{page}operations/{effect.pk}/": f"{page}operations/{effect.pk}/values/request/",
    }
    for shown_at, address in whole.items():
        shown = browser.get(shown_at).content.decode()
        assert address in shown, shown_at
        assert "bytes of JSON, not loaded here" in shown
        assert "éééé" not in shown
        opened = json.loads(browser.get(address).content)
        assert opened.get("rows", opened) in (flows.HEAVY, flows.HEAVY["rows"])
        assert stranger.get(address).status_code == 403
    signals = browser.get(f"{page}?part=signals").content.decode()
    assert f"{page}record/signals/" in signals
    assert browser.get(f"{page}record/logs/{message.pk}/").status_code == 404
    assert browser.get(f"{page}record/signals/{message.pk}/").status_code == 404


def test_the_page_of_an_attempt_shows_what_a_patch_changed(worker: Any) -> None:
    run = until(begin("t_large"))
    browser = client("support")
    page = browser.get(f"/runs/{run.pk}/attempts/5/1/").content.decode()
    assert "&quot;seen&quot;: 3" in page
    assert "&quot;seen&quot;: 4" in page
    assert "documents[3].body[" in page, "what was added, not the whole document"
    assert "word 3 word 3" not in page
    assert "$agentops" not in page
    values = browser.get(f"/runs/{run.pk}/?part=values").content.decode()
    assert f"/runs/{run.pk}/values/state/" in values
    state = json.loads(browser.get(f"/runs/{run.pk}/values/state/").content)
    assert state["seen"] == flows.VISITS


def found(*names: str) -> set[str]:
    doctor.load()
    return {p.check for p in doctor.examine(grace=60)} & {"missing_blob", "unused_blob", "unreadable_state"}


def test_doctor_and_pages_say_what_cannot_be_read_any_more(worker: Any) -> None:
    run = until(begin("t_large"))
    assert found() == set()
    blob = Blob.objects.get()
    body, other = bytes(blob.body), zlib.compress(b'{"documents":[]}')
    Blob.objects.update(body=other)
    assert found() == {"missing_blob", "unreadable_state"}
    browser = client("support")
    answer = browser.get(f"/runs/{run.pk}/values/state/")
    assert (answer.status_code, "cannot be read" in answer.content.decode()) == (410, True)
    page = browser.get(f"/runs/{run.pk}/attempts/5/1/").content.decode()
    Blob.objects.update(body=body)
    Blob.objects.create(sha256="0" * 64, body=body, created_at=clock.now() - timedelta(days=8))
    assert found() == {"unused_blob"}
    assert blobs.sweep() == 1
    assert "It cannot be read: <bdi>blob" in page, page[page.index('id="state"') :][:700]
    assert found() == set()


def test_a_run_whose_state_cannot_be_read_is_retried_and_stops_nobody(worker: Any) -> None:
    run = begin("t_parked")
    until(run, "waiting")
    blob = Blob.objects.get()
    body = bytes(blob.body)
    Blob.objects.update(body=b"junk")
    receive_signal(SYSTEM, name="go", payload=1, external_id="1", source="test", run_id=run.pk)
    crashed = Attempt.objects.filter(run_id=run.pk, outcome="crashed")
    wait_until(crashed.exists, 10, "its attempt is closed")
    assert "cannot be read" in crashed[0].error
    Blob.objects.update(body=body)
    assert until(run).status == "completed", run.reason
