"""The floor: what this server can do at all.

One CTE statement per step (UPDATE of the run, INSERT of the attempt), one commit, sent by plain psycopg; each connection is
a process of its own, so that no interpreter lock limits it.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import psycopg

CONNECTIONS = (1, 2, 4, 8)
_STEPS = 10
_RUNS = 20_000  # for each connection

_TABLES = """
DROP TABLE IF EXISTS run, step;
CREATE TABLE run (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'ready', step int NOT NULL DEFAULT 0,
    updated timestamptz DEFAULT now());
CREATE TABLE step (run_id bigint NOT NULL, n int NOT NULL, result jsonb, at timestamptz DEFAULT now(),
    PRIMARY KEY (run_id, n));
"""

_STEP = """
WITH u AS (UPDATE run SET step = %s, updated = now() WHERE id = %s RETURNING id)
INSERT INTO step (run_id, n, result) SELECT id, %s, %s::jsonb FROM u
"""


class Floor:
    """Processes with one connection each; as many as are asked for work at a time."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def steps_per_s(self, connections: int, seconds: float) -> float:
        """Durable steps per second of this many connections, over about so many seconds."""
        working = self._pipes[:connections]
        for pipe in working:
            pipe.send(seconds)
        rates: list[float] = [pipe.recv() for pipe in working]
        return sum(rates)


@contextmanager
def floor(url: str) -> Iterator[Floor]:
    """Start the processes on an empty database, and end them."""
    with psycopg.connect(url) as made:
        made.execute(_TABLES)
        made.execute("INSERT INTO run (id) SELECT generate_series(0, %s)", [_RUNS * max(CONNECTIONS)])
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(max(CONNECTIONS)):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_work, args=(url, number * _RUNS, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()
        yield Floor(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            process.kill()
            process.join()


def _work(url: str, first: int, pipe: Connection) -> None:
    """Step through runs from `first` on for as long as asked; answers with steps per second."""
    run, step = first, 0
    with psycopg.connect(url, autocommit=True) as connection:
        pipe.send("ready")
        while True:
            try:
                seconds: float = pipe.recv()
            except EOFError:
                return
            begun, done = time.monotonic(), 0
            while time.monotonic() - begun < seconds:
                connection.execute(_STEP, (step + 1, run, step, '{"ok": 1}'))
                done += 1
                step += 1
                if step == _STEPS:
                    run, step = run + 1, 0
            pipe.send(done / (time.monotonic() - begun))
