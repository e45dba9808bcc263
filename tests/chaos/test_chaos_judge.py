"""The judge: each thing that must not be is provoked, and named."""

import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from agentops.chaos import judge, report
from agentops.chaos.asked import Asked
from agentops.chaos.judge import Effect, Life, Notes, Strike, Try, Wrong, compare
from agentops.chaos.ledgers import CannotJudge, Ledgers, Performed
from agentops.sandbox.client import SandboxLedger
from runs import clock, lifecycle, services
from runs.bulk.selection import Filter
from runs.models import BulkItem, Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.services import bulk
from runs.states import AttentionKind, Status
from tests import factories
from tests.harness.processes import free_port


def effect(key: str = "k1", status: str = "done", **fields: Any) -> Effect:
    return Effect(
        **{"operation": "op", "run": "run", "tool": "refund", "status": status, "keys": (key,)} | fields
    )


def compared(effects: Sequence[Effect], *performed: str, **options: Any) -> tuple[Wrong, judge.Tally]:
    wrong = Wrong()
    tally = compare(
        effects, [Performed(key, what=f"entry {key}") for key in performed], {"refund"}, wrong, **options
    )
    return wrong, tally


# --- effects against ledgers --------------------------------------------------------------------------------------------


def test_what_is_done_once_is_right():
    wrong, tally = compared([effect("k1"), effect("k2")], "k1", "k2")
    assert not wrong.counts
    assert (tally.expected, tally.seen) == (2, 2)


def test_what_is_done_and_in_no_ledger_is_lost():
    wrong, tally = compared([effect("k1"), effect("k2")], "k1")
    assert wrong.counts == {"lost": 1}
    assert "k2" in wrong.samples["lost"][0]
    assert (tally.expected, tally.seen) == (2, 1)


def test_what_happened_twice_is_repeated():
    wrong, _ = compared([effect("k1")], "k1", "k1")
    assert wrong.counts == {"repeated": 1}
    assert "k1" in wrong.samples["repeated"][0]


def test_what_happened_under_two_generations_of_its_key_is_repeated():
    wrong, _ = compared([effect(keys=("k1", "k2"))], "k1", "k2")
    assert wrong.counts == {"repeated": 1}


@pytest.mark.parametrize("status", ["failed", "retry"])
def test_what_happened_although_the_record_says_that_it_did_not_is_wrong(status: str):
    wrong, _ = compared([effect(status=status)], "k1")
    assert wrong.counts == {"unrecorded": 1}
    assert not compared([effect(status=status)], "k1", complete=False)[0].counts


def test_what_is_in_doubt_may_have_happened():
    assert not compared([effect(status="pending")], "k1")[0].counts


def test_what_happens_in_the_name_of_a_sample_has_a_record():
    wrong = Wrong()
    stray = [Performed("k9", run_id="run", what="mail no. 4"), Performed("k9", run_id="foreign")]
    compare([], stray, set(), wrong, runs_of_samples=frozenset({"run"}))
    assert wrong.counts == {"unrecorded": 1}
    assert "mail no. 4" in wrong.samples["unrecorded"][0]


def test_tools_without_a_ledger_are_said_to_be_not_observable():
    wrong, tally = compared(
        [effect("k1"), effect("k5", tool="fax"), effect("k6", "failed", tool="fax")], "k1"
    )
    assert not wrong.counts
    assert (tally.expected, tally.not_observable) == (1, {"fax": 1})


def test_a_tool_of_which_a_ledger_has_one_key_is_judged():
    wrong, tally = compared([effect("k5", tool="fax"), effect("k6", tool="fax")], "k5")
    assert wrong.counts == {"lost": 1}
    assert tally.not_observable == {}


# --- time to recover ------------------------------------------------------------------------------------------------------

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
WORKER, RUN = uuid.uuid4(), uuid.uuid4()


def at(seconds: float) -> datetime:
    return BEGUN + timedelta(seconds=seconds)


def recovered(*strikes: float, outcome: str = "crashed", pid: int = 11) -> list[float]:
    tries = [Try(RUN, WORKER, outcome, at(1), at(8)), Try(RUN, uuid.uuid4(), "succeeded", at(9), at(10))]
    lives = [Life(uuid.uuid4(), 11, at(-100)), Life(WORKER, 11, at(0))]
    blows = [Strike(at(second).timestamp(), "kill_worker", (pid,)) for second in strikes]
    return judge.recoveries(blows, lives, tries)


def test_recovery_lasts_from_the_fault_to_the_next_attempt_of_the_run():
    assert recovered(5) == [pytest.approx(4)]


def test_of_several_blows_the_first_counts():
    assert recovered(6, 5) == [pytest.approx(4)]


def test_a_fault_that_stopped_no_attempt_counts_for_none():
    assert recovered(0.5) == []
    assert recovered(9.5) == []
    assert recovered(5, outcome="succeeded") == []
    assert recovered(5, pid=12) == []


def test_percentiles_are_values_that_occurred():
    values = [float(n) for n in range(1, 101)]
    assert [judge.percentile(values, share) for share in (0.5, 0.99, 1)] == [50, 99, 100]
    assert judge.percentile([], 0.5) is None


# --- the whole verdict, on a database -------------------------------------------------------------------------------------


class Told(Ledgers):
    """Ledgers that say what a test has them say."""

    def __init__(self, *keys: object) -> None:
        self.keys = [str(key) for key in keys]

    def performed(self) -> list[Performed]:
        return [Performed(key, what=f"entry {key}") for key in self.keys]

    def observable(self, seen: object = ()) -> set[str]:
        return {"book_courier"}

    def faults(self) -> Any:
        return Counter(provider_503=2)

    def webhooks_pending(self) -> int:
        return 0


def notes(**fields: Any) -> Notes:
    defaults: dict[str, Any] = {
        "seed": 1,
        "duration": 10.0,
        "complete": True,
        "still": True,
        "faults": {"kill_worker": 3},
        "strikes": (Strike(1.5, "kill_worker", (1, 2)),),
        "confirmed": tuple(str(pk) for pk in Run.objects.values_list("pk", flat=True)),
    }
    return Notes(**defaults | fields)


@pytest.fixture
def done(transactional_db: None) -> Operation:
    """A finished run with one effect that is recorded as done."""
    return factories.operation(factories.run(Status.COMPLETED))


def test_a_trial_in_which_everything_agrees_is_proof(done: Operation):
    made = judge.judged(notes(), Told(done.provider_key))
    assert (made["wrong"], made["invariants_ok"], made["effects_seen"], made["faults"]) == ({}, True, 1, 5)
    assert report.exit_code(made) == report.PROVED


def test_a_repeat_in_the_ledger_is_no_proof(done: Operation):
    made = judge.judged(notes(), Told(done.provider_key, done.provider_key))
    assert made["repeated"] == 1
    assert str(done.provider_key) in made["wrong"]["repeated"][0]
    assert report.exit_code(made) == report.WRONG


def test_a_lost_effect_is_no_proof(done: Operation):
    made = judge.judged(notes(), Told())
    assert made["lost"] == 1
    assert str(done.pk) in made["wrong"]["lost"][0]
    assert report.exit_code(made) == report.WRONG


def test_a_broken_chain_is_no_proof(done: Operation):
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE runs_event SET actor = 'nobody' WHERE run_id = %s", [done.run_id])
        cursor.execute("SET session_replication_role = origin")
    made = judge.judged(notes(), Told(done.provider_key))
    assert f"run {done.run_id}" in made["wrong"]["doctor"][0]
    assert (made["invariants_ok"], report.exit_code(made)) == (False, report.WRONG)


def test_a_run_without_an_end_is_no_proof(done: Operation):
    left = factories.run(Status.RETRYING)
    made = judge.judged(notes(), Told(done.provider_key))
    assert f"run {left.pk}" in made["wrong"]["not_ended"][0]
    assert report.exit_code(made) == report.WRONG


def test_a_run_of_ones_own_that_waits_is_counted_and_not_wrong(done: Operation):
    factories.signal_wait()
    doubt = factories.doubt()
    made = judge.judged(notes(), Told(done.provider_key))
    assert (made["wrong"], made["waiting"], made["attention"]) == ({}, 2, 1)
    Run.objects.filter(pk=doubt.run_id).update(attention_kind=AttentionKind.DIVERGED)
    made = judge.judged(notes(), Told(done.provider_key))
    assert f"run {doubt.run_id}" in made["wrong"]["not_ended"][0]


def test_a_confirmed_run_that_does_not_exist_is_no_proof(done: Operation):
    missing = str(uuid.uuid4())
    made = judge.judged(notes(confirmed=(str(done.run_id), missing)), Told(done.provider_key))
    assert missing in made["wrong"]["lost_runs"][0]
    assert report.exit_code(made) == report.WRONG


def test_a_refusal_that_did_not_come_is_no_proof(done: Operation):
    made = judge.judged(notes(told=("a forged webhook was accepted",)), Told(done.provider_key))
    assert made["wrong"]["refusals"] == ["a forged webhook was accepted"]
    assert report.exit_code(made) == report.WRONG


def test_an_interrupted_trial_proves_nothing(done: Operation):
    factories.run(Status.RETRYING)
    made = judge.judged(notes(complete=False, still=False), Told(done.provider_key))
    assert (made["wrong"], report.exit_code(made)) == ({}, report.INTERRUPTED)


def test_a_trial_without_runs_cannot_be_judged(transactional_db: None):
    with pytest.raises(CannotJudge, match="nothing was proved"):
        judge.judged(notes(confirmed=()), Told())


def test_without_the_sandbox_nothing_can_be_judged(done: Operation):
    with (
        SandboxLedger(f"http://127.0.0.1:{free_port()}") as gone,
        pytest.raises(CannotJudge, match="does not answer"),
    ):
        judge.judged(notes(), Ledgers(gone))


def test_notes_are_read_as_they_were_written(transactional_db: None):
    written = notes(told=("something",))
    assert Notes.read(written.written()) == written


def test_a_key_that_was_counted_up_is_looked_for_under_all_its_generations(done: Operation):
    Operation.objects.filter(pk=done.pk).update(generation=2)
    (found,) = judge.effects_in_database()
    assert len(found.keys) == 4  # three generations, and the factory's own key
    assert found.keys[-1] == str(done.provider_key)
    assert done.status == OpStatus.DONE


# --- what people did --------------------------------------------------------------------------------------------------------


def asked(run: Run, reason: str, answer: str, verb: str = "retry") -> Asked:
    return Asked(verb, str(run.pk), reason, answer)


def judged_verbs(*requests: Asked) -> Wrong:
    wrong = Wrong()
    judge.look_for_verbs(requests, wrong)
    return wrong


@pytest.fixture
def retried(transactional_db: None) -> Run:
    """A run whose history says once that it was retried, as “chaos 7”."""
    run = factories.run(Status.FAILED)
    services.retry(factories.support(), run.pk, reason="chaos 7")
    return run


def test_what_people_were_told_agrees_with_the_history(retried: Run):
    requests = (
        asked(retried, "chaos 7", "done"),
        asked(retried, "chaos 8", "refused"),
        asked(retried, "chaos 9", "unknown"),
    )
    wrong = Wrong()
    assert judge.look_for_verbs(requests, wrong) == {"retry": {"done": 1, "refused": 1, "unknown": 1}}
    assert not wrong.counts


def test_a_confirmed_verb_that_the_history_does_not_know_is_lost(retried: Run):
    wrong = judged_verbs(asked(retried, "chaos 8", "done"))
    assert wrong.counts == {"lost_verbs": 1}
    assert f"retry of run {retried.pk} (chaos 8)" in wrong.samples["lost_verbs"][0]


def test_a_refused_verb_that_was_done_all_the_same_is_wrong(retried: Run):
    assert judged_verbs(asked(retried, "chaos 7", "refused")).counts == {"verbs": 1}


@pytest.mark.parametrize("answer", ["done", "unknown"])
def test_a_verb_that_was_done_twice_is_wrong(retried: Run, answer: str):
    with transaction.atomic():
        lifecycle.append_event(retried, "retried", factories.support(), "chaos 7")
    assert judged_verbs(asked(retried, "chaos 7", answer)).counts == {"verbs": 1}


def test_a_confirmed_edit_that_is_not_in_the_state_at_the_end_is_lost(transactional_db: None):
    run = factories.run(Status.FAILED, state={})
    services.edit_state(factories.support(), run.pk, state={judge.EDITS: ["chaos 1"]}, reason="chaos 1")
    wrong = Wrong()
    judge.look_for_edits([asked(run, "chaos 1", "done", "edit_state")], wrong)
    assert not wrong.counts
    judge.look_for_edits([asked(run, "chaos 2", "done", "edit_state")], wrong)
    assert wrong.counts == {"lost_edits": 1}


def test_what_begins_after_a_kill_is_wrong(transactional_db: None):
    doubt = factories.doubt(intent_epoch=0)
    services.kill(factories.admin(), doubt.run_id, reason="stop it")
    source = factories.operation(factories.run(Status.FAILED), intent_epoch=7)
    copy: dict[str, Any] = {"copied_from": source.pk, "provider_key": source.provider_key, "intent_epoch": 7}
    factories.operation(Run.objects.get(pk=doubt.run_id), **copy)  # a fork that was killed
    wrong = Wrong()
    judge.look_after_kills(wrong)
    assert not wrong.counts
    factories.operation(Run.objects.get(pk=doubt.run_id), status=OpStatus.PENDING, intent_epoch=99)
    judge.look_after_kills(wrong)
    assert wrong.counts == {"after_kill": 1}


def test_a_bulk_and_the_histories_of_its_runs_say_the_same(retried: Run):
    sam = factories.support("sam")
    made = bulk.create_bulk(sam, "retry", Filter(), name="chaos 7", reason="it is over").bulk
    item = BulkItem.objects.create(
        bulk=made, place=1, run_id=retried.pk, seen_version=1, state="done", at=clock.now()
    )
    wrong = Wrong()
    assert judge.look_for_bulks(wrong) == (1, 1)
    assert wrong.counts == {"bulks": 1} and "says that it retried" in wrong.samples["bulks"][0]
    with transaction.atomic():
        lifecycle.append_event(retried, "retried", sam, "chaos 7: it is over")
    wrong = Wrong()
    assert judge.look_for_bulks(wrong) == (1, 1) and not wrong.counts
    item.state = "skipped"
    item.save()
    judge.look_for_bulks(wrong)
    assert wrong.counts == {"bulks": 1} and "more than it says" in wrong.samples["bulks"][0]


def test_a_join_tells_of_every_child_what_it_came_to(transactional_db: None):
    parent = factories.run(Status.COMPLETED)
    wait = factories.operation(parent, Kind.CHILD, children=2, result={"ends": "cf", "others": {}})
    line: dict[str, Any] = {"parent_id": parent.pk, "parent_operation_id": wait.pk, "depth": 1}
    factories.run(Status.COMPLETED, child_index=0, **line)
    wrong = Wrong()
    judge.look_for_families(wrong)
    assert wrong.counts == {"families": 2}  # one child is missing, and the join tells of more than there are
    factories.run(Status.COMPLETED, child_index=1, **line)  # it failed then, and was retried
    wrong = Wrong()
    assert judge.look_for_families(wrong) == (2, 1) and not wrong.counts
    Operation.objects.filter(pk=wait.pk).update(result={"ends": "xf", "others": {}})
    judge.look_for_families(wrong)
    assert wrong.counts == {"families": 1} and "it is completed" in wrong.samples["families"][0]


def test_what_a_fork_has_taken_over_is_one_effect_and_not_two(done: Operation):
    made = factories.run(Status.COMPLETED, forked_from=done.run_id)
    copy = factories.operation(made, copied_from=done.pk, provider_key=done.provider_key)
    assert [one.operation for one in judge.effects_in_database()] == [str(done.pk)]
    Operation.objects.filter(pk=copy.pk).update(provider_key=uuid.uuid4())  # it was sent again
    assert len(judge.effects_in_database()) == 2


def test_a_bulk_and_a_doubt_without_an_end_are_no_proof(done: Operation):
    left = bulk.create_bulk(factories.support(), "retry", Filter(), name="a", reason="b").bulk
    doubt = factories.doubt()
    Run.objects.filter(pk=doubt.run_id).update(workflow="refund_request")
    made = judge.judged(notes(), Told(done.provider_key))
    told = " ".join(made["wrong"]["not_ended"])
    assert f"bulk {left.pk}" in told and f"of run {doubt.run_id} happened" in told
