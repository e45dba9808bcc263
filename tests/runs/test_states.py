"""The state chart: one table in the code, one trigger and one CHECK in the database, one page. They agree."""

import re
from itertools import product
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from runs import states
from runs.models import Run
from runs.models.operation import WAIT_KINDS
from runs.states import (
    CLAIMABLE,
    TERMINAL,
    TRANSITIONS,
    UNFINISHED,
    AttentionKind,
    FailureKind,
    Hold,
    Outcome,
    Status,
)
from runs.states_page import PERMISSIONS, document
from tests import factories

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
PAIRS = list(product(Status, Status))

#: What a row of each status must look like besides, so that nothing but the trigger can refuse a move.
FITTING = """
    UPDATE runs_run SET status = %(to)s,
        worker_id = CASE WHEN %(to)s = 'running' THEN gen_random_uuid() END,
        wake_at = CASE WHEN NOT %(to)s = ANY(%(terminal)s) THEN now() END,
        sort_at = CASE WHEN NOT %(to)s = ANY(%(terminal)s) AND %(to)s <> 'running' THEN now() END,
        finished_at = CASE WHEN %(to)s = ANY(%(terminal)s) THEN now() END,
        failure_kind = CASE WHEN %(to)s = 'failed' THEN 'declared' ELSE '' END,
        attention_kind = CASE WHEN %(to)s = 'attention' THEN 'diverged' ELSE '' END,
        compensating = %(to)s = 'cancelling'
    WHERE id = %(run)s
"""


def move(run: Run, to: Status) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(FITTING, {"to": to.value, "terminal": [s.value for s in TERMINAL], "run": run.pk})
        assert cursor.rowcount == 1


def name(pair: tuple[Status, Status]) -> str:
    return f"{pair[0].value}-{pair[1].value}"


@pytest.mark.django_db
@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_the_database_allows_exactly_the_moves_of_the_chart(pair: tuple[Status, Status]):
    old, new = pair
    run = factories.run(old)
    allowed = old == new or (old.value, new.value) in states.allowed_pairs()
    if allowed:
        move(run, new)
    else:
        with pytest.raises(IntegrityError, match=f"a run cannot go from {old.value} to {new.value}"):
            move(run, new)
    run.refresh_from_db()
    assert run.status == (new if allowed else old)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda t: t.event)
def test_an_event_is_legal_in_its_sources_and_nowhere_else(transition: states.Transition, status: Status):
    assert (status in states.sources_of(transition.event)) == (status in transition.sources)
    for target in transition.targets:
        pair = (status.value, target.value)
        if status in transition.sources and status != target:
            assert pair in states.allowed_pairs()


def test_an_event_that_the_chart_does_not_know_is_an_error():
    with pytest.raises(KeyError):
        states.sources_of("vanish")


def test_every_event_stands_in_the_chart_once():
    events = [t.event for t in TRANSITIONS]
    assert len(events) == len(set(events))


def test_nothing_but_a_person_leaves_a_final_status_and_only_that_of_a_failure():
    leaving = [t for t in TRANSITIONS if set(t.sources) & TERMINAL and t.targets]
    assert [(t.event, t.by) for t in leaving] == [("retry", states.PERSON), ("skip", states.PERSON)]
    assert all(set(t.sources) & TERMINAL == {Status.FAILED} for t in leaving)


def test_every_unfinished_status_can_be_reached_left_and_cancelled():
    pairs = states.allowed_pairs()
    for status in UNFINISHED:
        assert status == Status.QUEUED or any(new == status.value for _, new in pairs)
        assert any(old == status.value for old, _ in pairs)
    reachable = {Status.CANCELLED.value}
    while more := {old for old, new in pairs if new in reachable} - reachable:
        reachable |= more
    assert reachable >= {s.value for s in UNFINISHED}


def test_only_workers_make_a_run_running():
    assert {t.by for t in TRANSITIONS if Status.RUNNING in t.targets} == {states.WORKER}
    assert {s for t in TRANSITIONS if t.event == "claim" for s in t.sources} == set(CLAIMABLE)


@pytest.mark.django_db
def test_the_trigger_says_what_the_chart_says():
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = 'agentops_check_transition'")
        source = cursor.fetchone()[0]
    assert set(re.findall(r"\('(\w+)', '(\w+)'\)", source)) == states.allowed_pairs()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ("run_status_known", list(Status)),
        ("attempt_outcome_known", list(Outcome)),
        ("run_terminal_is_still", sorted(TERMINAL)),
    ],
)
def test_a_constraint_names_exactly_the_words_of_the_code(
    constraint: str, words: list[Status] | list[Outcome]
):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", [constraint])
        assert set(re.findall(r"'(\w+)'", cursor.fetchone()[0])) == {word.value for word in words}


# --- the page ------------------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]):
    call_command("states")
    assert capsys.readouterr().out == document()
    assert PAGE.read_text(encoding="utf-8") == document(), "uv run manage.py states > docs/states.md"


def test_the_page_holds_the_picture_exactly():
    assert f"```mermaid\n{states.mermaid()}\n```\n" in PAGE.read_text(encoding="utf-8")


def test_the_picture_holds_every_move_once():
    lines = re.findall(r"^ {4}(\w+) --> (\w+): (\w+)$", states.mermaid(), re.MULTILINE)
    assert len(lines) == len(set(lines))
    assert set(lines) == {
        (s.value, t.value, x.event) for x in TRANSITIONS for s in x.sources for t in x.targets
    }
    assert {(s, t) for s, t, _ in lines if s != t} == states.allowed_pairs()


def test_the_page_explains_every_word():
    text = PAGE.read_text(encoding="utf-8")
    for word in [*Status, *AttentionKind, *FailureKind, *Hold, *Outcome, *WAIT_KINDS]:
        assert f"| `{word.value}` |" in text


@pytest.mark.django_db
def test_the_page_names_who_may_as_migrations_set_it_up():
    assert set(PERMISSIONS) == {t.event for t in TRANSITIONS if t.by == states.PERSON}
    for permission, groups in PERMISSIONS.values():
        label, codename = permission.split(".")
        holders = Group.objects.filter(
            permissions__content_type__app_label=label, permissions__codename=codename
        )
        assert set(holders.values_list("name", flat=True)) == set(groups.split(", "))
