"""Every two of twelve actors race for one run, with sessions of their own and locks that hold them until both are there.

After each pair: no deadlock, no unexpected error, one winner where only one may win, no wake-up lost (a worker brings every run
to its end), and data in which doctor finds nothing.

Twenty rounds of each pair in CI; a thousand, three processes at a time: `uv run pytest -m long -n 3 --dist load tests/races`.
"""

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import TransactionTestCase
from pytest_django import DjangoDbBlocker

from tests.races.actors import ACTORS, PAIRS, SCENES, WAIT, expected, finish
from tests.races.stage import Stage, pooled, watched

#: Rounds at most between two looks at the data.
CHUNK = 100
NAMES = ["-".join(pair) for pair in PAIRS]


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Stage]:
    """One stage on one database for all pairs: each empties it itself, which takes less than making it anew."""
    as_found = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        # The test server has been up for so long: otherwise every worker would get a first lease to beat.
        patch.setattr(settings, "AGENTOPS_LEASE_SECONDS", 0.5)
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda test_case: None)
        with pooled():
            made = Stage()
            with watched(made, patch):
                yield made
            made.end()
        as_found(TransactionTestCase())


def play(stage: Stage, pair: tuple[str, str], rounds: int) -> None:
    scenes = SCENES[pair]
    stage.overlaps.clear()
    for begun in range(0, rounds, CHUNK):
        stage.begin_chunk()
        for turn, scene in enumerate(scenes):
            count = min(CHUNK, rounds - begun) // len(scenes)
            for n, case in enumerate(scene.prepare(stage, count), start=turn):
                scene.ready(stage, case)
                told = stage.race(scene.acts(stage, case, pair), n=n, lock=scene.lock(case, n))
                for answer in told:
                    if not expected(answer):
                        raise AssertionError(f"round {begun + n}: {answer!r}") from answer
                scene.check(stage, case, *told)
                finish(case)
        stage.examine()
    if set(pair) <= WAIT and pair[0] != pair[1]:
        assert stage.overlaps[2], "the two never stood before one lock together: this was no race"


def test_there_are_twelve_actors_and_a_scene_for_every_two() -> None:
    assert len(ACTORS) == 12
    assert list(SCENES) == PAIRS
    assert len(PAIRS) == 78


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_twenty_races_of_two_have_one_winner_each_and_lose_no_wake_up(
    stage: Stage, pair: tuple[str, str]
) -> None:
    play(stage, pair, 20)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_a_thousand_races_of_two_have_one_winner_each_and_lose_no_wake_up(
    stage: Stage, pair: tuple[str, str]
) -> None:
    play(stage, pair, 1000)
