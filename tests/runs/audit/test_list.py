"""The list of what people and policies did, and the page of one entry."""

import re
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals import services as approvals
from runs import access, clock, codec, lifecycle, services
from runs.models import AuditEvent, AuditLink, Event, Run
from runs.pages import audit, audit_search, audit_words
from runs.pages.audit_search import Chosen, Place
from runs.states import Status
from tests import factories
from tests.runs.audit.people import auditor, browser, entries, passes, text
from tests.runs.views.people import client
from tests.security.hostile import HOSTILE, harmless

pytestmark = pytest.mark.django_db


@pytest.fixture
def console() -> Client:
    return client("admins")


def acted(run: Run, kind: str = "retried", name: str = "sam", reason: str = "", /, **data: object) -> None:
    """An event of the run, by a person without an account."""
    lifecycle.append_event(run, kind, lifecycle.Actor(name, factories.user()), reason, **data)


def changed(target: str = "tool book_courier", name: str = "ada", kind: str = "limits_changed") -> AuditEvent:
    return AuditEvent.objects.create(kind=kind, target=target, actor=name, old=None, new=None)


# --- what stands in it ---------------------------------------------------------------------------------------------------


def test_what_is_done_to_runs_and_what_is_changed_outside_stand_in_one_list_newest_first(console):
    services.set_limits(factories.admin("ada"), "tool", "book_courier", max_attempts=8, reason="it is slow")
    passes(1)
    services.cancel(factories.support("sam"), factories.run(Status.WAITING).pk, reason="asked by phone")
    passes(1)
    services.set_limits(factories.admin("bea"), "tool", "book_courier", max_attempts=3, reason="it is fast")
    said = entries(console)
    places = [
        said.index(part) for part in ("bea", "it is fast", "sam", "asked by phone", "ada", "it is slow")
    ]
    assert places == sorted(places)
    assert "asked for order 1042 to be cancelled" in said or "ended order 1042 as cancelled" in said
    assert "changed the limits of book_courier retry limit 8 attempts to 3 attempts" in said


def test_what_workers_did_does_not_stand_in_it(console):
    run = factories.failed()
    assert Event.objects.filter(run_id=run.pk, kind="failed").exists()
    response = console.get(reverse("audit:list"))
    assert "Nobody has done anything yet" in text(response)


def test_what_a_policy_did_in_the_place_of_people_stands_in_it(console):
    lifecycle.append_event(
        factories.run(Status.WAITING), "approval_decided", lifecycle.CLOCK, "", verdict="expired"
    )
    assert "clock let a request for approval of order 1042 expire" in entries(console)


def test_a_decision_is_told_with_its_request_and_its_run(console):
    approval = factories.approval()
    approvals.decide(
        factories.operator("olivia"), approval.pk, version=1, digest=approval.digest, verdict="approve"
    )
    response = console.get(reverse("audit:list"), {"what": "decisions"})
    assert "olivia approved a request for approval of order 1042" in entries(console)
    assert reverse("approvals:approval", args=[approval.pk]).encode() in response.content


def test_every_kind_that_can_be_filtered_by_has_a_sentence_of_its_own():
    told = set(audit_words._OF_RUNS) | set(audit_words._OUTSIDE)
    assert {kind for one in audit_words.FAMILIES.values() for kind in one.kinds} - told == {
        f"{scope}_{verb}" for scope in ("workflow", "queue", "everything") for verb in ("paused", "resumed")
    }


def test_each_kind_of_event_is_told_whatever_its_data_holds(console):
    run = factories.run()
    for kind in audit_words._OF_RUNS:
        acted(run, kind)
    assert "gave order 1042 priority" in entries(console)


def test_a_kind_that_nobody_thought_of_is_shown_all_the_same(console):
    acted(factories.run(), "reborn")
    changed("moon", kind="moon_painted")
    said = entries(console)
    assert "order 1042: reborn" in said
    assert "moon: moon painted" in said


def test_a_request_about_a_run_stands_in_it_once_and_in_the_list_of_its_run(console):
    run = factories.run()
    acted(run, "request_opened", request=str(uuid.uuid4()), verb="force_resume")
    AuditEvent.objects.create(
        kind="request_opened", target=f"request {uuid.uuid4()}", actor="sam", new={"title": "Force it on"}
    )
    assert entries(console).count("sam") == 1
    assert "opened a request to others about order 1042" in entries(console, run=run.pk)


# --- filters -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def varied() -> dict[str, Run]:
    """Things done by different people on different runs."""
    runs = {
        "mine": factories.run(subject="order 1", workflow="parcel"),
        "other": factories.run(subject="order 2", workflow="letter"),
    }
    acted(runs["mine"], "retried", "sam", "one")
    passes(1)
    acted(runs["other"], "killed", "bea", "two")
    passes(1)
    changed("workflow parcel", "ada")
    changed("step parcel/pack", "ada")
    changed("approval policy of tool book_courier", "ada", "approval_policy_set")
    changed("tool book_courier", "bea")
    changed("worker x", "cleo", "worker_drain")
    return runs


@pytest.mark.parametrize(
    ("query", "found", "missing"),
    [
        ({"person": "sam"}, ["sam retried"], ["bea", "ada", "cleo"]),
        ({"person": "bea"}, ["bea killed", "bea changed the limits of book_courier"], ["sam", "ada", "cleo"]),
        ({"verb": "killed"}, ["bea killed"], ["sam", "ada", "cleo", "changed"]),
        ({"what": "runs"}, ["bea killed", "sam retried"], ["ada", "cleo"]),
        ({"what": "limits"}, ["changed the limits of parcel", "bea changed"], ["sam", "killed", "cleo"]),
        ({"what": "runs", "person": "sam"}, ["sam retried"], ["killed"]),
        ({"what": "limits", "person": "bea"}, ["bea changed"], ["killed", "ada"]),
        ({"subject": "order 2"}, ["bea killed order 2"], ["sam", "ada", "changed"]),
        (
            {"policy": "tool book_courier"},
            ["changed the approval policy", "bea changed the limits"],
            ["sam", "of parcel"],
        ),
        ({"target": "worker x"}, ["cleo"], ["ada", "bea", "sam"]),
        ({"workflow": "letter"}, ["bea killed"], ["sam", "ada", "cleo"]),
    ],
)
def test_a_filter_shows_what_is_like_it_and_nothing_else(query, found, missing, console, varied):
    said = entries(console, **query)
    assert [part for part in found if part not in said] == []
    assert [part for part in missing if part in said] == []


def test_a_workflow_shows_its_runs_its_limits_and_those_of_steps_that_had_one(console, varied):
    services.set_limits(factories.admin("dora"), "step", "parcel/pack", max_attempts=2, reason="low")
    said = entries(console, workflow="parcel")
    assert "sam retried order 1" in said
    assert "ada changed the limits of parcel" in said
    assert "dora changed the limits of parcel, step pack" in said
    assert "bea" not in said


def test_a_run_shows_what_was_done_to_it(console, varied):
    changed(f"run {varied['mine'].pk}", "eva", "bundle_exported")
    said = entries(console, run=varied["mine"].pk)
    assert "sam retried" in said and "eva took a support bundle" in said
    assert "bea" not in said and "ada" not in said


def test_a_policy_shows_what_was_decided_under_it(console):
    approval, other = factories.approval(), factories.approval(name="print_label", arguments={"order": "1"})
    for one in (approval, other):
        approvals.decide(factories.operator(), one.pk, version=1, digest=one.digest, verdict="approve")
    said = entries(console, policy="tool book_courier")
    assert said.count(" approved ") == 1


def test_a_period_ends_with_its_last_day(console):
    run = factories.run()
    for day in (1, 2, 3):
        acted(run, "retried", "sam", f"day {day}")
        passes(24 * 60)
    days = list(Event.objects.filter(kind="retried").order_by("seq").values_list("at", flat=True))
    said = entries(console, since=f"{days[1]:%Y-%m-%d}", until=f"{days[1]:%Y-%m-%d}")
    assert "day 2" in said and "day 1" not in said and "day 3" not in said
    assert "day 3" in entries(console, period="week") and "day 1" not in entries(console, period="day")


def test_a_period_may_end_with_the_last_day_that_there_is(console):
    acted(factories.run(), "retried", "sam", "late")
    assert "late" in entries(console, since="0001-01-01", until="9999-12-31")


@pytest.mark.parametrize(
    "query", [{"run": "x"}, {"since": "yesterday"}, {"what": "magic"}, {"person": "a\x00b"}]
)
def test_a_filter_that_makes_no_sense_is_told_so_and_finds_nothing(query, console):
    acted(factories.run())
    response = console.get(reverse("audit:list"), query)
    assert response.status_code == 422
    assert b'class="acts"' not in response.content


# --- paging and numbers --------------------------------------------------------------------------------------------------


def test_pages_follow_one_another_without_a_gap_also_where_many_things_have_one_time(monkeypatch):
    monkeypatch.setattr(audit, "SIZE", 7)
    admin = factories.user("", "admins")
    runs = [factories.run() for _ in range(3)]
    for number in range(40):
        acted(runs[number % 3], "retried", "sam", str(number))
        changed(name=str(number))
        if number % 15 == 0:
            passes(1)
    seen, before = [], None
    while True:
        listed = audit.page(admin, Chosen(), before, size=7)
        seen += [entry.place.order for entry in listed.entries]
        if listed.following is None:
            break
        before = Place.parse(str(listed.following))
        assert before == listed.following
    assert len(seen) == 80 == len(set(seen))
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(
    "chosen", [Chosen(), Chosen(what="retried"), Chosen(person="sam"), Chosen(workflow="parcel")]
)
def test_the_way_back_to_what_is_newer_passes_the_same_entries(chosen):
    admin, runs = factories.user("", "admins"), [factories.run() for _ in range(3)]
    for number in range(30):
        acted(runs[number % 3], "retried", "sam", str(number))
        changed(name="sam")
        if number % 10 == 0:
            passes(1)
    first = audit.page(admin, chosen, size=7)
    forth, listed = [first.entries], first
    while listed.following is not None:
        listed = audit.page(admin, chosen, listed.following, size=7)
        forth.append(listed.entries)
    assert first.newer is None and len(forth) > 3
    back = []
    while listed.newer is not None:
        listed = audit.page_after(admin, chosen, listed.newer, size=7)
        back.append(listed.entries)
        following = audit.page(admin, chosen, listed.following, size=7)
        assert following.newer == following.entries[0].place
    places = [[entry.place for entry in page] for page in forth]
    assert [[entry.place for entry in page] for page in back] == places[-2::-1]


def test_a_page_leads_to_older_and_newer_ones_and_to_the_newest(console, monkeypatch):
    monkeypatch.setattr(audit, "SIZE", 3)
    run = factories.run()
    for number in range(10):
        acted(run, "retried", "sam", f"no. {number}.")
        passes(1)

    def to(word: str, html: str) -> str:
        found = re.search(rf'<a class="btn" href="([^"]+)"[^>]*>(?:<svg.*?</svg>)?{word}', html)
        assert found, f"no way to {word}"
        return reverse("audit:list") + found[1].replace("&amp;", "&")

    def at(address: str) -> str:
        return str(console.get(address).content.decode())

    newest = at(reverse("audit:list", query={"person": "sam"}))
    assert "no. 9." in newest and "Newer</a>" not in newest
    second = at(to("Older", newest))
    third = at(to("Older", second))
    assert "no. 3." in third and "no. 4." not in third
    again = at(to("Newer", third))
    assert "no. 6." in again and "no. 4." in again and "no. 3." not in again
    assert "no. 9." in at(to("Newest", again)) and "no. 3." in at(to("Older", again))
    top = at(to("Newer", again))
    assert "no. 9." in top
    # Nothing is newer than the newest: the list begins anew.
    assert "no. 9." in at(
        reverse("audit:list", query={"person": "sam", "after": str(Place(clock.now(), event_id=run.pk))})
    )


@pytest.mark.parametrize(
    "query",
    [
        Chosen(workflow="letter"),
        Chosen(workflow="letter", what="retried"),
        Chosen(what="retried", person="sam"),
    ],
)
def test_what_is_rare_is_found_a_stretch_at_a_time_and_the_page_says_how_far_it_looked(
    query, monkeypatch, console
):
    monkeypatch.setattr(audit, "LOOKS", 10)
    monkeypatch.setattr(audit_search, "FEW_RUNS", 0)
    admin = factories.user("", "admins")
    rare, usual = factories.run(workflow="letter"), factories.run()
    acted(rare)
    for number in range(35):
        passes(0.1)
        acted(usual, "retried" if query.workflow else "skipped", step="a", to="b")
        if number == 20:
            acted(rare)
    found, before, looked = [], None, 0
    while True:
        listed = audit.page(admin, query, before, size=5)
        found += listed.entries
        looked += listed.looked_to is not None
        if listed.following is None:
            break
        before = listed.following
    assert [entry.run.workflow for entry in found if entry.run] == ["letter", "letter"]
    assert looked >= 3
    response = console.get(reverse("audit:list"), {"workflow": "letter"})
    assert response.status_code == 200


def test_a_number_that_was_counted_up_to_a_limit_says_so(monkeypatch, console):
    monkeypatch.setattr(audit, "COUNT_LIMIT", 3)
    run = factories.run()
    for _ in range(3):
        acted(run)
    assert audit.count(factories.user("", "admins"), Chosen()).number == 3
    changed()
    assert audit.count(factories.user("", "admins"), Chosen()).number == 4


def test_a_number_that_was_not_counted_to_the_end_says_at_least(monkeypatch, console):
    monkeypatch.setattr(audit, "LOOKS", 5)
    monkeypatch.setattr(audit_search, "FEW_RUNS", 0)
    rare, usual = factories.run(workflow="letter"), factories.run()
    for number in range(8):
        acted(rare if number == 7 else usual)
        passes(0.1)
    counted = audit.count(factories.user("", "admins"), Chosen(workflow="letter"))
    assert (counted.number, counted.more) == (1, True)
    assert "At least 1 entry like this" in text(console.get(reverse("audit:list"), {"workflow": "letter"}))


# --- who sees what -------------------------------------------------------------------------------------------------------


def test_somebody_who_sees_a_part_of_the_runs_reads_what_was_done_to_that_part(varied):
    changed(f"run {varied['other'].pk}", "eva", "bundle_exported")
    AuditEvent.objects.create(
        kind="request_opened", target="request 1", actor="fay", new={"target": f"run {varied['other'].pk}"}
    )
    for name, of in (("gus", varied["other"]), ("hal", varied["mine"])):
        about = {"target": f"operation {factories.operation(of).pk}", "title": "Say that it happened"}
        AuditEvent.objects.create(kind="request_opened", target="request 2", actor=name, new=about)
    AuditEvent.objects.create(
        kind="request_opened", target="request 3", actor="ivy", new={"target": "workflow parcel"}
    )
    mine = browser(auditor(("view", "workflow", "parcel")))
    said = entries(mine)
    assert "sam retried order 1" in said and "cleo" in said and "hal" in said and "ivy" in said
    assert not {"killed", "eva", "fay", "gus"} & set(said.split())
    for query in (
        {"workflow": "letter"},
        {"subject": "order 2"},
        {"run": varied["other"].pk},
        {"person": "bea", "what": "runs"},
    ):
        assert "killed" not in entries(mine, **query)
    by_subject = browser(auditor(("view", "subject", "order 2")))
    assert "killed order 2" in entries(by_subject) and "order 1" not in entries(by_subject)


def test_what_is_seen_by_sql_is_what_access_lets_be_seen():
    runs = [
        factories.run(workflow=workflow, subject=subject)
        for workflow in ("parcel", "letter")
        for subject in ("order 1", "Order 1", "other", "")
    ]
    for one in runs:
        acted(one)
    person = auditor(("view", "workflow", "letter"), ("operate", "subject", "order "))
    seen = {entry.run.pk for entry in audit.page(person, Chosen()).entries if entry.run}
    assert seen == {one.pk for one in runs if access.may(person, "runs.view_run", one)}


def test_an_event_of_a_run_that_is_not_theirs_is_not_there(varied):
    mine = browser(auditor(("view", "workflow", "parcel")))
    assert mine.get(reverse("audit:event", args=[varied["mine"].pk, 2])).status_code == 200
    assert mine.get(reverse("audit:event", args=[varied["other"].pk, 2])).status_code == 404


def test_content_of_a_run_is_not_told_to_whoever_may_not_see_it(console):
    run = factories.run()
    acted(run, "asked_back", "olivia", "is it the red one?", question=1)
    acted(run, "signal", "olivia", name="paid-in-full")
    blind = browser(auditor(("view", "everything", "")))
    said = entries(blind)
    assert "asked about" in said and "red one" not in said and "paid-in-full" not in said
    page = blind.get(reverse("audit:event", args=[run.pk, 2]))
    assert "red one" not in text(page) and "your account may not see" in text(page)
    assert "red one" in entries(console) and "paid-in-full" in entries(console)


def test_the_digest_of_an_entry_is_hidden_from_whoever_could_confirm_a_guess_with_it(console):
    run, other = factories.run(), factories.run(workflow="letter")
    acted(run, "retried", "sam", "it was the red one")
    change = changed("failure x", kind="failure_note")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    head = bytes(Event.objects.get(run_id=run.pk, seq=2).head).hex()
    link = bytes(AuditLink.objects.get(event_id=change.pk).head).hex()
    of_event, of_change = (
        reverse("audit:event", args=[run.pk, 2]),
        reverse("audit:change", args=[change.pk]),
    )
    assert head in text(console.get(of_event)) and link in text(console.get(of_change))
    blind = browser(auditor(("view", "everything", ""), also=("view_event",)))
    partly = browser(auditor(("view", "everything", ""), ("payloads", "workflow", "parcel")))
    for reader, address in ((blind, of_event), (blind, of_change), (partly, of_change)):
        said = text(reader.get(address))
        assert head not in said and link not in said and "digest of this entry is hidden from you" in said
    assert head in text(partly.get(of_event))
    acted(other, "retried", "sam")
    assert "digest of this entry is hidden" in text(partly.get(reverse("audit:event", args=[other.pk, 2])))
    # Whether the chain is sound is told all the same.
    assert "is sound" in text(blind.get(reverse("audit:run_chain", args=[run.pk])))


# --- one entry -----------------------------------------------------------------------------------------------------------


def test_an_entry_has_a_page_with_who_what_why_and_what_it_changed(console):
    services.set_limits(
        factories.admin("ada"), "tool", "book_courier", max_attempts=8, reason="the provider is slow"
    )
    event = AuditEvent.objects.get()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    response = console.get(reverse("audit:change", args=[event.pk]))
    said = text(response)
    assert "ada changed the limits of book_courier" in said
    assert "the provider is slow" in said
    assert "no. 1 of the audit" in said
    assert "max_attempts" in said


def test_an_event_of_a_run_has_one_too(console):
    run = factories.run()
    acted(run, "skipped", "sam", "it is broken", step="pack", to="ship")
    said = text(console.get(reverse("audit:event", args=[run.pk, 2])))
    assert "sam let order 1042 skip step pack and go on at step ship" in said
    assert "it is broken" in said and "no. 2 of its run" in said
    assert console.get(reverse("audit:event", args=[run.pk, 99])).status_code == 404
    assert console.get(f"/audit/runs/{run.pk}/{9**40}/").status_code == 404


def test_a_page_makes_a_fixed_number_of_queries(console):
    run = factories.run()
    for _ in range(30):
        acted(run)
        changed()
    for query in ({}, {"workflow": "parcel", "person": "sam"}, {"policy": "tool book_courier"}):
        with CaptureQueriesContext(
            connection,
        ) as caught:
            console.get(reverse("audit:list"), query)
        assert len(caught) <= 12, [one["sql"] for one in caught]


# --- indexes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def many() -> Run:
    """40,000 events on 400 runs, of which people did 4,000; 4,000 audit events; analysed. One of the runs."""
    one = factories.run(subject="order 7")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_run SELECT made.* FROM runs_run r CROSS JOIN generate_series(1, 400) AS number"
            " CROSS JOIN LATERAL jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid(),"
            " 'subject', 'order ' || number, 'workflow', 'w' || number % 2)) AS made"
        )
        cursor.execute(
            "INSERT INTO runs_event (run_id, seq, at, kind, actor_id, actor, reason, data, head)"
            " SELECT r.id, 100 + n, now() - make_interval(secs => n * 17 + random() * 100),"
            " (ARRAY['waiting', 'retried', 'killed'])[1 + (n % 10 = 0)::int + (n % 30 = 0)::int],"
            " CASE WHEN n % 10 = 0 THEN 5 END, CASE WHEN n % 10 = 0 THEN 'p' || n % 7 ELSE 'worker' END, '', '{}', ''"
            " FROM runs_run r CROSS JOIN generate_series(1, 100) AS n WHERE r.subject <> ''"
        )
        cursor.execute(
            "INSERT INTO runs_audit_event (id, at, kind, target, actor, reason)"
            " SELECT gen_random_uuid(), now() - make_interval(secs => n),"
            " (ARRAY['limits_changed', 'killed', 'bulk_made', 'started'])[1 + n % 4], 'tool ' || n % 900, 'p' || n % 7, ''"
            " FROM generate_series(1, 4000) AS n"
        )
        for table in ("runs_run", "runs_event", "runs_audit_event"):
            cursor.execute(f"ANALYZE {table}")
        # Of a few thousand rows each is read as fast in whole; nobody has so few for long.
        cursor.execute("SET LOCAL enable_seqscan = off")
    return one


#: What is looked for, and by which index in each table.
BY_INDEX: list[tuple[dict[str, Any], str, str]] = [
    ({}, "event_acted", "audit_by_time"),
    ({"person": "p3"}, "event_acted_by", "audit_by_actor"),
    ({"what": "limits"}, "event_acted_kind", "audit_by_kind"),
    ({"what": "killed"}, "event_acted_kind", "audit_by_kind"),
    ({"what": "runs", "workflow": "w1"}, "event_acted_kind", "audit_by_target"),
    ({"workflow": "w1"}, "event_acted", "audit_by_target"),
    ({"policy": "tool 7"}, "event_acted_kind", "audit_by_target"),
    ({"subject": "order 7"}, "run_id = ANY", "audit_by_target"),
]


def test_each_list_reads_an_index_from_its_newest_end_and_never_a_whole_table(many, monkeypatch):
    monkeypatch.setattr(audit_search, "FEW_RUNS", 100)
    admin = factories.user("", "admins")
    before = Place(Event.objects.filter(kind="retried").latest("at").at, run_id=many.pk, seq=5)
    for chosen, *indexes in BY_INDEX:
        for place, forward in ((None, False), (before, False), (before, True)):
            search = audit_search.Search(admin, Chosen(**chosen), forward=forward)
            queries = search.events(place, 50, 200), search.changes(place, 50, 200)
            for query, index in zip(queries, indexes, strict=True):
                for sql in (query.sql, f"SELECT {query.counting}"):
                    plan = explained(sql, query.parameters)
                    assert index in plan, (chosen, plan)
                    for table in ("runs_run", "runs_event", "runs_audit_event"):
                        assert f"Seq Scan on {table}" not in plan, (chosen, plan)


def explained(sql: str, parameters: dict[str, Any]) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", parameters)
        return "\n".join(line for (line,) in cursor.fetchall())


# --- hostile text --------------------------------------------------------------------------------------------------------


def test_hostile_text_in_every_field_is_harmless_on_every_page_of_the_audit(console):
    bad = codec.clean_text(" ".join(HOSTILE))
    run = factories.run(subject=bad, workflow=bad)
    acted(run, "skipped", bad[:100], bad, step=bad, to=bad)
    acted(run, "signal", bad[:100], bad, name=bad)
    acted(run, bad[:60], bad[:100], bad)
    made = AuditEvent.objects.create(
        kind="bulk_made",
        target="bulk " + bad,
        actor=bad,
        reason=bad,
        old={bad: bad},
        new={"name": bad, bad: [bad]},
    )
    changed(bad, bad, bad[:60])
    pages = [
        reverse("audit:list"),
        reverse("audit:list", query={"person": bad[:100], "target": bad, "verb": "signal"}),
        reverse("audit:change", args=[made.pk]),
        *(reverse("audit:event", args=[run.pk, number]) for number in (2, 3, 4)),
        reverse("audit:run_chain", args=[run.pk]),
        reverse("audit:export", query={"workflow": bad[:100]}),
    ]
    for page in pages:
        response = console.get(page)
        assert response.status_code == 200, page
        # A form gives back what was typed into the address.
        assert harmless(response.content.decode(), typed="person=" in page), page


def test_the_history_of_a_run_leads_to_its_audit_and_its_chain(console):
    run = factories.run()
    page = console.get(reverse("runs:run", args=[run.pk]), {"part": "events"}).content.decode()
    assert f"/audit/?run={run.pk}" in page and reverse("audit:run_chain", args=[run.pk]) in page
    page = client("support").get(reverse("runs:run", args=[run.pk]), {"part": "events"}).content.decode()
    assert "/audit/?run=" not in page and reverse("audit:run_chain", args=[run.pk]) in page
