"""What is true of a run and what happens next, as the two sentences that its pages begin with."""

from dataclasses import dataclass

from agentops.console.times import duration
from runs import content
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
    reason = "" if content.is_hidden(run) else run.reason
    match run.status:
        case Status.COMPLETED:
            return Headline(f"Completed after {took}.", "Nothing more happens.")
        case Status.CANCELLED:
            return Headline(sentence(reason or "cancelled"), f"It ended after {took}. Nothing more happens.")
        case Status.FAILED:
            kind = run.get_failure_kind_display()
            return Headline(
                sentence(f"failed: {reason}" if reason else f"failed: {kind.lower()}"),
                f"{kind}. Nothing happens until somebody retries it.",
            )
    fact, _, then = why.sentence.partition("; ")
    if run.status == Status.RUNNING:
        return Headline(sentence(fact), sentence(then))
    fact = f"Waiting because {fact}"
    if run.status == Status.ATTENTION:
        return Headline(sentence(fact), f"{sentence(then)} Nothing moves until then." if then else "")
    return Headline(sentence(fact), sentence(then))


def sentence(text: str) -> str:
    """The text with a capital and an end; "" stays ""."""
    text = text.strip()
    if not text:
        return ""
    end = "" if text[-1] in ".!?…" else "."
    return f"{text[0].upper()}{text[1:]}{end}"
