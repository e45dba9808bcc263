"""Numbers as addresses and forms made by hand hold them."""

#: Digits of the longest one: it fits PostgreSQL's integer.
LONGEST = 9


def number_of(text: str | None) -> int | None:
    """At most nine ASCII digits as a number; None for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= LONGEST else None
