"""The verb that asks back: a question to the agent about a request, which stays open."""

import uuid
from typing import cast

from django.contrib.auth.models import User
from django.utils.crypto import constant_time_compare

from approvals.models import Approval, Question
from approvals.questions import say
from approvals.services import RUN_OF, check_may_decide, permit_decision
from runs import codec, lifecycle
from runs.errors import Invalid, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Run
from runs.services.verb import Done, permit_somewhere, verb
from runs.states import Status

TEXT_LENGTH = 2_000
#: Questions about one request. More is a conversation, which does not belong into an approval.
MOST = 50


@verb
def ask(
    actor: Actor, approval_id: uuid.UUID, *, version: int, digest: str, text: str, token: uuid.UUID
) -> Done:
    """Ask the agent about exactly the payload that was shown; the request stays open.

    Args:
        token: made with the form, so that the same form sent twice asks once.

    Raises NotAllowed (whoever may not decide may not ask either), NotFound, Invalid (nothing asked, or too much), Stale,
    StateMismatch (decided, expired or void).
    """
    permit_somewhere(actor, "approvals.decide_approval")
    run, approval = _locked(approval_id)
    permit_decision(actor, run)
    check_may_decide(actor, approval)
    if Question.objects.filter(pk=token).exists():
        return Done(run, "You had already asked that.", changed=False)
    if approval.state != Approval.State.OPEN:
        raise StateMismatch(f"this request is no longer open: {approval.get_state_display().lower()}")
    if version != approval.version or not constant_time_compare(digest, approval.digest):
        raise Stale(
            "this request has changed since the page was loaded: read the new version and ask about that"
        )
    asked = codec.clean_text(text.strip())
    if not asked:
        raise Invalid("write what you want to know")
    if len(asked) > TEXT_LENGTH:
        raise Invalid(f"at most {TEXT_LENGTH:,} characters")
    if approval.asked >= MOST:
        raise Invalid(f"there are {MOST} questions already: decide, or talk to whoever started the run")
    question = Question.objects.create(
        id=token,
        approval=approval,
        run_id=run.pk,
        number=approval.asked + 1,
        version=version,
        text=asked,
        by=actor.name,
        by_user=cast("User", actor.user),
    )
    approval.asked = question.number
    approval.save(update_fields=["asked"])
    say(approval.operation, question.number, "question", "user", asked)
    about = {"approval": str(approval.pk), "version": version, "digest": digest, "question": question.number}
    lifecycle.append_event(run, "asked_back", actor, asked, **about)
    if approval.answers and run.status == Status.WAITING:
        lifecycle.set_due(run)
    told = "the agent is asked now" if approval.answers else "the agent reads it with the decision"
    return Done(run, f"Your question is recorded: {told}. The request stays open.")


def _locked(approval_id: uuid.UUID) -> tuple[Run, Approval]:
    try:
        run = lifecycle.lock_run(approval_id, RUN_OF)
    except Run.DoesNotExist:
        raise NotFound(f"there is no approval {approval_id}") from None
    both = Approval.objects.select_related("operation").select_for_update(of=("self",))
    return run, both.get(pk=approval_id)
