"""The large state of W8, and what a step changes in it; the bench makes it again to compare."""

from typing import Any

from runs import codec


def first_state() -> dict[str, Any]:
    """About 200 KB: a hundred documents of words that do not compress well, and a list that grows."""
    words = [codec.digest(n)[: 4 + n % 9] for n in range(2000)]
    return {
        "documents": [
            {"n": n, "read": 0, "text": " ".join(words[(n * 37 + i * (n + 3)) % 2000] for i in range(220))}
            for n in range(100)
        ],
        "log": [],
        "step": 0,
    }


def change(state: dict[str, Any], step: int) -> None:
    """What one step changes: two counters and a word in one document, and a line more."""
    state["step"] = step
    document = state["documents"][step * 7 % 100]
    document["read"] += 1
    document["text"] = document["text"].replace(" ", f" {step} ", 1)
    state["log"].append({"step": step, "saw": document["n"]})
