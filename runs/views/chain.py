"""Pages on whether history was changed behind the application: the chain of the audit, and that of one run."""

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentops.console.numbers import number_of
from runs import access, clock
from runs.models import ChainCheck, Run
from runs.services import chain as checking
from runs.views.acting import actor
from runs.views.audit import MOST

#: Checks that the page shows.
SHOWN = 10


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("runs.view_auditevent")
def chain(request: HttpRequest) -> HttpResponse:
    """What checks of the audit chain found; the form begins one, or goes on with the one that is under way."""
    if request.method == "POST":
        check = checking.check_chain(actor(request))
        if check.state == ChainCheck.State.SOUND:
            messages.success(request, f"The chain is sound up to entry {check.seq:,}.")
        elif check.state == ChainCheck.State.CHECKING:
            messages.info(
                request, f"Good up to entry {check.seq:,}. Workers go on by themselves; so may you, at once."
            )
        return redirect("audit:chain")
    checks = list(ChainCheck.objects.order_by("-id")[:SHOWN])
    sound = next((one for one in checks if one.state == ChainCheck.State.SOUND), None)
    context = {
        "checks": checks,
        "last": checks[0] if checks else None,
        "sound": sound,
        "broken": broken(checks),
        "end": checking.end(),
        "now": clock.now(),
    }
    return render(request, "audit/chain.html", context)


def broken(checks: list[ChainCheck]) -> ChainCheck | None:
    """The newest check that is over, if it found the chain broken: one that is under way does not take that back."""
    over = next((one for one in checks if one.state != ChainCheck.State.CHECKING), None)
    return over if over is not None and over.state == ChainCheck.State.BROKEN else None


@require_safe
@access.required("runs.view_event")
def of_run(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """The chain of a run, looked through now."""
    run = access.run_or_404(
        request.user, run_id, "runs.view_event", rows=Run.objects.only("workflow", "subject")
    )
    after = number_of(request.GET.get("after")) or 0
    context = {
        "run": run,
        "check": checking.check_run(run_id, min(after, MOST - 1)),
        "after": after,
        "may_audit": access.may(request.user, "runs.view_auditevent"),
        "now": clock.now(),
    }
    return render(request, "audit/run_chain.html", context)
