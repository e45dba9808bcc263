"""Waiting for a condition, with a reason when it does not come."""

import time
from collections.abc import Callable

import pytest

PAUSE_S = 0.02


def wait_until[T](
    condition: Callable[[], T], timeout: float, why: str, *, evidence: Callable[[], str] | None = None
) -> T:
    """Call `condition` until its answer is true, and return the answer.

    After `timeout` seconds the test fails, with `why` (what was waited for) and what `evidence` returns.
    """
    deadline = time.monotonic() + timeout
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    pytest.fail(f"After {timeout:g} s still waiting until {why}.\n{evidence() if evidence else ''}".rstrip())
