"""The page of several like approvals: look at them side by side, decide with one verdict, see what became of each."""

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from agentops import sign_ins
from approvals import views
from approvals.forms import ReasonedForm
from approvals.inbox.listing import as_sentence, together_url
from approvals.inbox.together import MOST, Outcome, Result, Tick, Together, decide_each, summary
from runs import access, clock
from runs.errors import Invalid

#: What became of the last ones that were decided in this browser, until the next are.
_RESULTS = "decided_together"


class TogetherForm(ReasonedForm):
    """One verdict and one reason."""

    unreasoned = "Say why you reject them: each agent and whoever asked for it will read this."


@require_http_methods(["GET", "HEAD", "POST"])
@access.required("approvals.view_approval")
def together(request: HttpRequest) -> HttpResponse:
    """GET: the requests whose ids the address names, side by side. POST: decide on those that are ticked."""
    if request.method != "POST":
        return _page(request)
    if not access.may(request.user, "approvals.decide_approval"):
        return _page(request, 403, refusal="Your account does not have the permission to decide.")
    form = TogetherForm(request.POST)
    ticks = [Tick.read(text) for text in request.POST.getlist("item")[: MOST + 1]]
    shown = [tick for tick in ticks if tick is not None]
    if not form.is_valid() or not shown or len(shown) < len(ticks) or len(ticks) > MOST:
        return _page(request, 422, form=form, ticks=shown, refusal=_what_is_missing(form, shown, ticks))
    chosen = Together(views.user_of(request), [tick.item for tick in shown], clock.now())
    try:
        results = decide_each(chosen, shown, signed_in_at=sign_ins.signed_in_at(request), **form.cleaned_data)
    except Invalid as error:
        return _page(request, 422, form=form, ticks=shown, refusal=as_sentence(str(error)))
    _keep(request, results, form.cleaned_data["reason"])
    # With those that were left out: they can be decided next.
    return redirect(together_url(_ids(request) or [tick.item for tick in shown]))


def _ids(request: HttpRequest) -> list[uuid.UUID]:
    """The ids in the address, more than are shown, so that the page can say how many those are."""
    read = (views.uuid_of(text) for text in request.GET.getlist("id")[: 10 * MOST])
    return list(dict.fromkeys(found for found in read if found is not None))


def _what_is_missing(form: TogetherForm, shown: list[Tick], ticks: list[Tick | None]) -> str:
    """What to say of a form that cannot be carried out; "" where it stands beside the field."""
    if not ticks:
        return "Tick at least one of them."
    if len(ticks) > MOST:
        return f"At most {MOST} can be decided together."
    return "The form was not complete." if len(shown) < len(ticks) or "verdict" in form.errors else ""


def _page(
    request: HttpRequest,
    status: int = 200,
    *,
    form: TogetherForm | None = None,
    ticks: list[Tick] | None = None,
    refusal: str = "",
) -> HttpResponse:
    ids, now = _ids(request), clock.now()
    results, reason = _kept(request, ids)
    ticked = [tick.item for tick in ticks or []]
    if ticks is None:
        # What was left out stays so, and what has changed is to be read first; what only failed is offered again.
        again = (Outcome.NOT_FRESH, Outcome.NOT_DONE)
        ticked = [result.item for result in results if result.outcome in again] if results else ids
    chosen = Together(
        views.user_of(request), ids, now, ticked=ticked, told=[result.item for result in results]
    )
    not_fresh = chosen.not_fresh(sign_ins.signed_in_at(request))
    context: dict[str, Any] = {
        "together": chosen,
        "refusal": refusal,
        "reason": form.data.get("reason", "") if form else reason,
        "reason_errors": form.errors.get("reason", []) if form else [],
        "now": now,
        "here": together_url(ids),
        "not_fresh": not_fresh,
        "most": MOST,
    }
    if results and form is None:
        titles = {member.id: member for member in chosen.members}
        context["results"] = [(result, titles.get(result.item)) for result in results]
        context["summary"] = summary(results)
    return render(request, "approvals/together.html", context, status=status)


# --- results last until the next, so that the page can be loaded again --------------------------------------------------


#: What can be decided once more by whoever reads or signs in first.
_AGAIN = (Outcome.CHANGED, Outcome.NOT_FRESH, Outcome.NOT_DONE)


def _keep(request: HttpRequest, results: list[Result], reason: str) -> None:
    again = any(result.outcome in _AGAIN for result in results)
    request.session[_RESULTS] = {
        "results": [[str(result.item), str(result.outcome), result.sentence] for result in results],
        "reason": reason if again else "",
    }


def _kept(request: HttpRequest, ids: list[uuid.UUID]) -> tuple[list[Result], str]:
    """What became of these, and the reason that was given; nothing where others were decided last."""
    kept = request.session.get(_RESULTS)
    if not kept or not {item for item, _, _ in kept["results"]} <= {str(one) for one in ids}:
        return [], ""
    results = [
        Result(uuid.UUID(item), Outcome(outcome), sentence) for item, outcome, sentence in kept["results"]
    ]
    return results, kept["reason"]
