"""Round after round of one pair, and what is looked at afterwards."""

from collections.abc import Mapping, Sequence

from tests.races.actors import ACTS, Make, Scene, expected, finish
from tests.races.stage import Stage

#: Rounds at most between two looks at the data.
CHUNK = 100


def play(stage: Stage, pair: tuple[str, str], scenes: Sequence[Scene], rounds: int, *, meet: bool) -> None:
    """So many rounds, in chunks with a database of their own. `meet`: both wait for one lock, sooner or later."""
    stage.overlaps.clear()
    for begun in range(0, rounds, CHUNK):
        stage.begin_chunk()
        act(stage, pair, scenes, min(CHUNK, rounds - begun), begun=begun)
        stage.examine()
    assert stage.overlaps[2] or not meet, "the two never stood before one lock together: this was no race"


def act(
    stage: Stage,
    pair: tuple[str, str],
    scenes: Sequence[Scene],
    rounds: int,
    known: Mapping[str, Make] = ACTS,
    begun: int = 0,
) -> None:
    """The rounds of a pair, on the database as it is."""
    for turn, scene in enumerate(scenes):
        for n, case in enumerate(scene.prepare(stage, rounds // len(scenes)), start=turn):
            scene.ready(stage, case)
            told = stage.race(scene.acts(stage, case, pair, known), n=n, lock=scene.lock(case, n))
            for answer in told:
                if not expected(answer):
                    raise AssertionError(f"{'-'.join(pair)}, round {begun + n}: {answer!r}") from answer
            try:
                scene.check(stage, case, *told)
            except AssertionError as error:
                error.add_note(f"{'-'.join(pair)}, scene {turn}, round {begun + n}: {told!r}")
                raise
            finish(case)
