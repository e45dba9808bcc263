"""The verbs that people have beside the twelve race with each other, with workers and with the clock, where the outcome matters.

As in `test_pairs`: no deadlock, no unexpected error, one winner where only one may win, everybody told what is true, no wake-up
lost, and data in which doctor finds nothing. A group of pairs shares a database, so that they take little time.

Five rounds of each pair in CI; hundreds: `uv run pytest -m long tests/races/test_verbs.py`.
"""

import pytest

from tests.races.playing import act
from tests.races.stage import Stage
from tests.races.verbs import ALL, APART, SCENES, WAITS


def play(stage: Stage, group: str, rounds: int) -> None:
    stage.begin_chunk()
    for pair, scenes in SCENES[group].items():
        stage.overlaps.clear()
        act(stage, pair, scenes, rounds, ALL)
        if set(pair) <= WAITS and pair[0] != pair[1] and pair not in APART:
            assert stage.overlaps[2], f"{pair} never stood before one lock together: this was no race"
    stage.examine()


def test_every_verb_that_moves_a_run_is_in_some_race() -> None:
    raced = {name for group in SCENES.values() for pair in group for name in pair}
    assert raced >= {
        "fork",
        "skip",
        "state",
        "kill",
        "answer",
        "turn",
        "together",
        "edit",
        "ask",
        "vote",
        "gone",
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("group", SCENES)
def test_races_of_peoples_verbs_have_one_winner_each_and_lose_no_wake_up(stage: Stage, group: str) -> None:
    play(stage, group, 5)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("group", SCENES)
def test_hundreds_of_such_races_have_one_winner_each_and_lose_no_wake_up(stage: Stage, group: str) -> None:
    for _ in range(5):
        play(stage, group, 60)
