"""What is true of a run and what happens next, as the two sentences that its pages begin with."""

from dataclasses import dataclass

from agentops.console.times import duration
from runs.models import Run
from runs.pages.reasons import Why
from runs.states import Status


@dataclass(frozen=True)
class Headline:
    """`fact` is what is true, `then` what happens next; each a whole sentence, or empty."""

    fact: str
    then: str


def headline(run: Run, why: Why) -> Headline:
    """The sentences for this run. `why` is that of `reasons.why`."""
    took = duration((run.finished_at - run.created_at).total_seconds()) if run.finished_at else ""
    match run.status:
        case Status.COMPLETED:
            return Headline(f"Completed after {took}.", "Nothing more happens.")
        case Status.CANCELLED:
            return Headline(
                _sentence(run.reason or "cancelled"), f"It ended after {took}. Nothing more happens."
            )
        case Status.FAILED:
            kind = run.get_failure_kind_display()
            return Headline(
                _sentence(f"failed: {run.reason}" if run.reason else f"failed: {kind.lower()}"),
                f"{kind}. Nothing happens until somebody retries it.",
            )
    fact, _, then = why.sentence.partition("; ")
    if run.status == Status.RUNNING:
        return Headline(_sentence(fact), _sentence(then))
    fact = f"Waiting because {fact}"
    if run.status == Status.ATTENTION:
        return Headline(_sentence(fact), f"{_sentence(then)} Nothing moves until then." if then else "")
    return Headline(_sentence(fact), _sentence(then))


def _sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    end = "" if text[-1] in ".!?…" else "."
    return f"{text[0].upper()}{text[1:]}{end}"
