"""A ledger of one's own, as docs/chaos.md describes it."""

from collections.abc import Iterable

from agentops.chaos.ledgers import Performed

PERFORMED: list[str | Performed] = []


def performed_effects() -> Iterable[str | Performed]:
    yield from PERFORMED
