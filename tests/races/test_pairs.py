"""Every two of twelve actors race for one run, with sessions of their own and locks that hold them until both are there.

After each pair: no deadlock, no unexpected error, one winner where only one may win, no wake-up lost (a worker brings every run
to its end), and data in which doctor finds nothing.

Twenty rounds of each pair in CI; a thousand, three processes at a time: `uv run pytest -m long -n 3 --dist load tests/races`.
"""

import pytest

from tests.races.actors import ACTORS, PAIRS, SCENES, WAIT
from tests.races.playing import play
from tests.races.stage import Stage

NAMES = ["-".join(pair) for pair in PAIRS]


def _meet(pair: tuple[str, str]) -> bool:
    return set(pair) <= WAIT and pair[0] != pair[1]


def test_there_are_twelve_actors_and_a_scene_for_every_two() -> None:
    assert len(ACTORS) == 12
    assert list(SCENES) == PAIRS
    assert len(PAIRS) == 78


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_twenty_races_of_two_have_one_winner_each_and_lose_no_wake_up(
    stage: Stage, pair: tuple[str, str]
) -> None:
    play(stage, pair, SCENES[pair], 20, meet=_meet(pair))


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_a_thousand_races_of_two_have_one_winner_each_and_lose_no_wake_up(
    stage: Stage, pair: tuple[str, str]
) -> None:
    play(stage, pair, SCENES[pair], 1000, meet=_meet(pair))
