"""The plan of a trial: made from its seed before it begins."""

import pytest

from agentops.chaos import load, plan
from agentops.chaos.plan import CONTINUOUS, Group, Kind


def test_the_same_seed_makes_the_same_plan():
    assert plan.faults(7, 60, 40, plan.choose()) == plan.faults(7, 60, 40, plan.choose())
    assert load.starts(7, 60, 3) == load.starts(7, 60, 3)


def test_another_seed_makes_another_plan():
    assert plan.faults(7, 60, 40, plan.choose()) != plan.faults(8, 60, 40, plan.choose())
    assert load.starts(7, 60, 3) != load.starts(8, 60, 3)


def test_a_plan_has_as_many_faults_as_asked_for_in_order_and_within_the_time():
    faults = plan.faults(1, 120, 40, plan.choose())
    assert len(faults) == 80
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert all(plan.QUIET_S <= fault.at <= 120 for fault in faults)


def test_every_planned_kind_is_dealt_before_one_comes_round_again():
    weights = plan.choose()
    cards = sum(weight for kind, weight in weights.items() if kind not in CONTINUOUS)
    faults = plan.faults(1, 60, cards, weights)
    assert {fault.kind for fault in faults} == set(Kind) - CONTINUOUS


def test_every_kind_belongs_to_a_group_and_has_a_weight():
    assert sorted(kind for kinds in plan.GROUPS.values() for kind in kinds) == sorted(Kind)
    assert plan.WEIGHTS.keys() == set(Kind)
    assert plan.GROUPS.keys() == set(Group)


def test_kinds_are_chosen_by_name_group_and_weight():
    assert plan.choose(["kill_worker=9", "webhooks"]) == {
        Kind.KILL_WORKER: 9,
        Kind.WEBHOOK: plan.WEIGHTS[Kind.WEBHOOK],
        Kind.FORGED_WEBHOOK: plan.WEIGHTS[Kind.FORGED_WEBHOOK],
    }
    assert Kind.RACE not in plan.choose(without=["people"])
    assert plan.choose(["database"], ["hang"]).keys() == set(plan.GROUPS[Group.DATABASE]) - {Kind.HANG}


@pytest.mark.parametrize("name", ["earthquake", "kill_worker=0", "kill_worker=often", ""])
def test_what_is_no_kind_is_refused(name: str):
    with pytest.raises(plan.UnknownKind):
        plan.choose([name])


def test_without_planned_kinds_there_are_no_planned_faults():
    assert plan.faults(1, 60, 40, plan.choose(["provider"])) == []


def test_runs_are_started_evenly_and_inputs_are_taken_in_turn():
    given = [load.Given("a", [1, 2]), load.Given("b", [{}])]
    starts = load.starts(1, 3, 2, given)
    assert [start.at for start in starts] == [0, 0.5, 1, 1.5, 2, 2.5]
    assert [(start.workflow, start.input) for start in starts] == [
        *(("a", 1), ("b", {}), ("a", 2)),
        *(("b", {}), ("a", 1), ("b", {})),
    ]
