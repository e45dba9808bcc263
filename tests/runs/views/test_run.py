"""The page of one run."""

import re
from datetime import timedelta

import pytest

from runs import clock, services
from runs.models import Attempt, LogLine, Message, Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.states import AttentionKind, FailureKind, Outcome, Status
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db


def url(run):
    return f"/runs/{run.pk}/"


def attempt(run, number=1, **fields):
    now = clock.now()
    defaults = {
        "step_seq": run.step_seq,
        "epoch": number,
        "step": run.step,
        "outcome": Outcome.FAILED,
        "started_at": now - timedelta(seconds=2),
        "ended_at": now,
    }
    return Attempt.objects.create(run_id=run.pk, attempt_no=number, **(defaults | fields))


def page(client, run, query=""):
    response = client.get(url(run) + query)
    assert response.status_code == 200
    return response.content.decode()


# --- sentence first ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(Status))
def test_the_page_begins_with_what_is_true_whatever_the_status(status, operator):
    run = factories.run(status)
    html = page(operator, run)
    because = re.search(r'<p class="because"><strong><bdi>(.+?)</bdi></strong>', html)
    assert because and because[1].endswith(".")
    assert html.index("because") < html.index('class="facts') < html.index("Timeline")


def test_the_sentence_stands_before_the_verbs(support):
    html = page(support, factories.run(Status.FAILED, reason="ValueError: 20 prices"))
    assert html.index("Failed: ValueError: 20 prices.") < html.index("/retry/")


def test_a_reason_of_many_pages_is_cut_in_the_head_and_read_in_the_events(operator):
    html = page(operator, factories.run(Status.FAILED, reason="far too long " * 200 + "the end"))
    head = html[: html.index('class="facts')]
    assert "the end" not in head and '?part=events#record">Read all of it</a>' in head


def test_a_failed_run_says_why_and_that_nothing_happens_by_itself(operator):
    run = factories.run(Status.FAILED, reason="ValueError: 20 prices")
    html = page(operator, run)
    assert "Failed: ValueError: 20 prices." in html
    assert "Retries exhausted. Nothing happens until somebody retries it." in html


def test_a_run_in_attention_says_what_somebody_has_to_do(operator):
    html = page(operator, factories.doubt().run)
    assert "Waiting because nobody knows whether book_courier happened." in html
    assert "Somebody has to say whether it did. Nothing moves until then." in html


def test_a_waiting_run_leads_to_where_it_can_be_settled(operator):
    approval = factories.approval()
    html = page(operator, approval.run)
    assert "Waiting because it needs approval of book_courier by operators or admins." in html
    assert f'href="/approvals/{approval.pk}/"' in html


# --- what it shows -------------------------------------------------------------------------------------------------------


def test_a_failed_attempt_shows_its_error_and_traceback_and_is_open(operator):
    run = factories.run(Status.FAILED)
    attempt(run, error_type="ValueError", error="20 prices", traceback="Traceback:\n  File x\nValueError: 20")
    html = page(operator, run)
    assert "<b><bdi>ValueError</bdi></b>: <bdi>20 prices</bdi>" in html
    assert "ValueError: 20" in html
    assert '<details class="is-bad" open>' in html


def test_operations_show_kind_key_status_tries_and_reference(operator):
    run = factories.run(Status.WAITING)
    done = factories.operation(run, name="book_courier", provider_ref="bk-9", tries=2)
    html = page(operator, run)
    row = html[html.index(f'id="op-{done.pk}"') :]
    for text in ("book_courier", "effect", str(done.provider_key)[:8], "Done", "bk-9"):
        assert text in row, text


def test_an_operation_without_key_and_reference_says_none_under_their_names_only(operator):
    run = factories.run(Status.WAITING)
    query = factories.operation(run, Kind.QUERY, name="find_address", provider_key=None, provider_ref="")
    html = page(operator, run)
    row = html[html.index(f'id="op-{query.pk}"') :]
    for name in ("Key", "Provider reference"):
        cell = re.search(rf'<td class="([^"]*)" data-label="{name}">(.*?)</td>', row)
        assert cell and "none" in cell[1].split() and "none" in cell[2], name


def test_a_long_message_is_folded_and_all_of_it_is_there(operator):
    run = factories.run(Status.WAITING)
    common = {"run_id": run.pk, "step_seq": 1, "attempt_no": 1, "role": "customer", "digest": ""}
    Message.objects.create(**common, position="1", content="I bought a lamp. " * 100 + "Goodbye.")
    Message.objects.create(**common, position="2", content="Thank you.")
    html = page(operator, run, "?part=messages")
    assert html.count('<details class="rest">') == 1
    assert "1,111 more characters" in html
    assert "Goodbye." in html[html.index('<details class="rest">') :]


def test_a_very_long_log_line_is_cut_and_leads_to_the_whole_of_it(operator):
    run = factories.run(Status.WAITING)
    line = LogLine.objects.create(
        run_id=run.pk,
        step_seq=1,
        attempt_no=1,
        position="1",
        text="x" * 5_000,
        data={"list": ["y" * 70] * 200},
    )
    html = page(operator, run, "?part=logs")
    whole = f"/runs/{run.pk}/record/logs/{line.pk}/"
    assert "[1,000 more characters]" in html and html.count("y" * 70) < 100
    assert html.count(f'href="{whole}"') == 2
    assert operator.get(whole).json() == {"text": line.text, "data": line.data}


def test_an_effect_that_its_worker_is_executing_is_pending_and_not_in_doubt(operator):
    run = factories.run(Status.RUNNING)
    factories.operation(run, status=OpStatus.PENDING, intent_epoch=run.epoch, intent_worker_id=run.worker_id)
    html = page(operator, run)
    assert "Pending" in html and "In doubt" not in html


def test_an_approval_says_what_people_decided(operator):
    for verdict, word in (("approved", "Approved"), ("rejected", "Rejected"), ("expired", "Expired")):
        run = factories.run(Status.WAITING)
        decided = factories.operation(run, Kind.APPROVAL, result={"verdict": verdict})
        html = page(operator, run)
        row = html[html.index(f'id="op-{decided.pk}"') :]
        assert f"</svg>{word}</span>" in row[: row.index("</tr>")]
        assert f"approval, {verdict}" in html


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("messages", "a customer wrote this"),
        ("logs", "making the report"),
        ("values", "1042"),
        ("signals", "shop"),
        ("events", "Started"),
    ],
)
def test_each_part_of_the_record_has_an_address(part, text, operator):
    run = factories.run(Status.WAITING)
    common = {"run_id": run.pk, "step_seq": 1, "attempt_no": 1}
    Message.objects.create(
        position="1", role="customer", content="a customer wrote this", digest="", **common
    )
    LogLine.objects.create(position="1", text="making the report", **common)
    services.receive_signal(
        factories.SYSTEM, name="paid", payload={}, external_id="1", source="shop", run_id=run.pk
    )
    html = page(operator, run, f"?part={part}")
    record = html[html.index('id="record"') :]
    assert text in record
    assert f'href="?part={part}#record" aria-current="true"' in record


def test_events_name_who_and_why(operator):
    run = factories.run(Status.FAILED)
    services.retry(factories.support("sam"), run.pk, reason="provider is back")
    html = page(operator, run, "?part=events")
    assert "<b><bdi>Retried</bdi></b>: <bdi>provider is back</bdi>" in html
    assert "<bdi>sam</bdi>" in html


def test_payloads_are_shown_only_with_the_permission():
    run = factories.run(Status.COMPLETED, state={"card": "secret-1"}, result="secret-2")
    operation = factories.operation(run, request={"card": "secret-3"}, response="secret-4", result="secret-5")
    Message.objects.create(
        run_id=run.pk, step_seq=1, attempt_no=1, position="1", role="customer", content="secret-6", digest=""
    )
    LogLine.objects.create(
        run_id=run.pk, step_seq=1, attempt_no=1, position="1", text="logged", data={"card": "secret-7"}
    )
    tried = attempt(run, state_after={"card": "secret-8"})
    addresses = [url(run) + f"?part={part}" for part in ("messages", "logs", "values", "signals", "events")]
    addresses += [
        f"{url(run)}operations/{operation.pk}/",
        f"{url(run)}attempts/{tried.step_seq}/{tried.attempt_no}/",
    ]
    without, allowed = client_with("view_run"), client_with("view_run", "view_payload")
    hidden = "".join(without.get(address).content.decode() for address in addresses)
    shown = "".join(allowed.get(address).content.decode() for address in addresses)
    assert "secret" not in hidden
    assert hidden.count("Hidden from you") >= 5
    assert {f"secret-{number}" for number in range(1, 9)} == set(re.findall(r"secret-\d", shown))
    for address in (f"{url(run)}values/state/", f"{url(run)}operations/{operation.pk}/values/request/"):
        assert without.get(address).status_code == 403
        assert "secret" in allowed.get(address).content.decode()


# --- size ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("part", ["messages", "values", "events"])
def test_it_takes_at_most_twelve_queries_however_much_belongs_to_it(
    status, part, support, django_assert_max_num_queries
):
    run = factories.run(status)
    for number in range(1, 20):
        attempt(run, number)
        factories.operation(run, Kind.QUERY)
        factories.operation(run, Kind.SIGNAL)
    if status == Status.WAITING:
        factories.approval(run)
    with django_assert_max_num_queries(12):
        page(support, run, f"?part={part}")


def test_five_thousand_attempts_are_not_loaded(support):
    run = factories.run(Status.WAITING)
    now = clock.now()
    Attempt.objects.bulk_create(
        Attempt(
            run_id=run.pk,
            step_seq=visit,
            attempt_no=1,
            epoch=visit,
            step="pack",
            outcome=Outcome.SUCCEEDED,
            started_at=now,
            ended_at=now,
        )
        for visit in range(1, 5001)
    )
    html = page(support, run)
    assert len(re.findall(r'<li id="attempt-', html)) == 25
    assert "1,000+ ended, none failed" in html
    older = re.search(r'href="\?before=(\d+\.\d+)#timeline"', html)
    assert older and older[1] == "4976.1"
    html = page(support, run, f"?before={older[1]}")
    assert 'id="attempt-4975-1"' in html and 'id="attempt-4976-1"' not in html
    assert "hx-trigger" not in html, "a page of the past is not polled"


# --- polling ---------------------------------------------------------------------------------------------------------------


def test_a_poll_gets_the_region_or_304(support):
    run = factories.run(Status.WAITING)
    first = support.get(url(run), headers={"HX-Request": "true"})
    assert first.content.decode().startswith('<div class="parts" id="run" hx-get=')
    tag = first.headers["HX-PTag"]
    assert support.get(url(run), headers={"HX-Request": "true", "HX-PTag": tag}).status_code == 304
    factories.operation(run)
    again = support.get(url(run), headers={"HX-Request": "true", "HX-PTag": tag})
    assert (again.status_code, tag in again.headers["HX-PTag"]) == (200, False)


def test_an_active_run_is_polled_and_a_finished_one_is_not(support):
    for status in Status:
        run = factories.run(status)
        assert ("every 3s" in page(support, run)) != run.is_terminal, status


# --- buttons ---------------------------------------------------------------------------------------------------------------


PRIORITY = "Change the priority"


@pytest.mark.parametrize(
    ("status", "fields", "buttons"),
    [
        (Status.QUEUED, {}, ["Force resume", "Send a signal", PRIORITY, "Cancel"]),
        (Status.RUNNING, {}, ["Force resume", "Send a signal", "Cancel"]),
        (
            Status.RETRYING,
            {},
            [
                "Retry now",
                "Force resume",
                "Send a signal",
                "Skip the step",
                "Edit the state",
                PRIORITY,
                "Cancel",
            ],
        ),
        (
            Status.WAITING,
            {},
            ["Force resume", "Send a signal", "Skip the step", "Edit the state", PRIORITY, "Cancel"],
        ),
        (
            Status.ATTENTION,
            {},
            ["Force resume", "Send a signal", "Skip the step", "Edit the state", "Fork", PRIORITY, "Cancel"],
        ),
        (
            Status.ATTENTION,
            {"attention_kind": AttentionKind.IN_DOUBT},
            ["Resolve in doubt", "Send a signal", PRIORITY, "Cancel"],
        ),
        (Status.CANCELLING, {}, ["Force resume", "Send a signal", PRIORITY]),
        (
            Status.FAILED,
            {"failure_kind": FailureKind.CRASHED},
            ["Retry", "Skip the step", "Edit the state", "Fork"],
        ),
        (Status.CANCELLED, {}, ["Fork"]),
        (Status.COMPLETED, {}, ["Fork"]),
    ],
)
def test_only_verbs_that_apply_are_offered(status, fields, buttons, support):
    html = page(support, factories.run(status, **fields))
    head = html[html.index('class="because"') : html.index("</header>", html.index("run-title"))]
    assert re.findall(r'<a class="btn[^"]*" href="[^"]*">([^<]+)</a>', head) == buttons


def test_who_only_looks_sees_no_verbs():
    html = page(client_with("view_run"), factories.doubt().run)
    assert 'class="btn' not in html[html.index("run-title") :]


# --- refusals --------------------------------------------------------------------------------------------------------------


def test_only_get(support):
    assert support.post(url(factories.run())).status_code == 405


def test_a_wrong_role_is_refused(stranger):
    assert stranger.get(url(factories.run())).status_code == 403


def test_no_run_is_not_found(support):
    assert support.get("/runs/00000000-0000-7000-8000-000000000000/").status_code == 404


def test_an_anonymous_visitor_is_sent_to_the_sign_in(client):
    run = factories.run()
    response = client.get(url(run))
    assert response.status_code == 302 and response.headers["Location"].startswith("/sign-in/?next=")


# --- its attempts and operations -------------------------------------------------------------------------------------------


def test_an_attempt_shows_what_it_changed_in_the_state(support):
    run = factories.run(Status.WAITING, step_seq=2)
    attempt(run, step_seq=1, outcome=Outcome.SUCCEEDED, state_after={"plan": None, "order": 7})
    second = attempt(run, 2, outcome=Outcome.SUCCEEDED, state_after={"plan": "refund", "order": 7})
    html = support.get(f"{url(run)}attempts/{second.step_seq}/2/").content.decode()
    assert '<span class="minus">- <bdi>' in html or '<span class="minus">-' in html
    assert "refund" in html[html.index('class="plus"') :]
    assert support.get(f"{url(run)}attempts/9/9/").status_code == 404


def test_an_operation_shows_request_approved_response_and_result(support):
    run = factories.run(Status.WAITING)
    operation = factories.operation(
        run, request={"n": "asked"}, approved={"n": "allowed"}, response={"n": "raw"}, result={"n": "given"}
    )
    html = support.get(f"{url(run)}operations/{operation.pk}/").content.decode()
    places = [html.index(text) for text in ("asked", "allowed", "raw", "given")]
    assert places == sorted(places)
    other = factories.run()
    assert support.get(f"{url(other)}operations/{operation.pk}/").status_code == 404


def test_a_value_that_is_cut_leads_to_the_whole(support):
    run = factories.run(Status.COMPLETED, state={"text": ["x" * 300] * 400})
    html = page(support, run, "?part=values")
    assert f'href="{url(run)}values/state/"' in html
    whole = support.get(f"{url(run)}values/state/")
    assert whole.headers["Content-Type"].startswith("application/json")
    assert whole.json() == run.state
    assert support.get(f"{url(run)}values/event_head/").status_code == 404


def test_a_run_whose_workflow_is_gone_still_has_a_page(support):
    run = factories.run(Status.WAITING, workflow="long_gone", step="nowhere")
    assert "long_gone" in page(support, run)
    assert Operation.objects.count() == 0 and Run.objects.count() == 1


def test_a_run_whose_first_attempt_goes_on_says_that_none_has_ended(support):
    html = page(support, factories.run(Status.RUNNING))
    assert "none has ended yet" in html
    assert "0 ended" not in html


@pytest.mark.parametrize("status", Status)
def test_the_region_says_whether_the_run_stands_until_a_person_acts(status, support):
    html = page(support, factories.run(status))
    assert ("data-stands" in html) == (status in (Status.FAILED, Status.ATTENTION))
