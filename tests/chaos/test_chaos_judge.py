"""The judge: each thing that must not be is provoked, and named."""

import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from agentops.chaos import judge, report
from agentops.chaos.judge import Effect, Life, Notes, Strike, Try, Wrong, compare
from agentops.chaos.ledgers import CannotJudge, Ledgers, Performed
from agentops.sandbox.client import SandboxLedger
from runs.models import Operation, Run
from runs.models.operation import OpStatus
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
