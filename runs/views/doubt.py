"""Answers that only a person can give: whether an effect happened, and that a worker is gone for good."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_http_methods, require_safe

from agentops.console import hostile
from runs import access, clock, services
from runs.errors import Invalid, StateMismatch
from runs.forms import GoneForm, HappenedForm, NotHappenedForm, SchemaForm, VerbForm, with_seen
from runs.models import Evidence, Operation, Worker
from runs.models.operation import OpStatus
from runs.services.doubt import answerable, gets_no_key, tool_of
from runs.views import page
from runs.views.acting import actor


@require_http_methods(["GET", "POST"])
@access.required("runs.resolve_doubt")
def answer(request: HttpRequest, run_id: uuid.UUID, operation_id: uuid.UUID) -> HttpResponse:
    """Say whether an effect in doubt happened; the form's button says which answer it is."""
    access.run_or_404(request.user, run_id, "runs.resolve_doubt")
    operation = _operation(run_id, operation_id)
    if request.method == "GET":
        return _sheet(request, operation)
    happened = request.POST.get("answer") == "yes"
    forms = _Forms(operation, request.POST, happened=happened, files=request.FILES)
    arguments = forms.arguments()
    if arguments is None:
        return _sheet(request, operation, forms=forms, status=422)
    try:
        done = services.answer_doubt(actor(request), operation_id, happened=happened, **arguments)
    except StateMismatch as error:
        fresh = _operation(run_id, operation_id)
        return _sheet(request, fresh, refusal=str(error), typed=request.POST, status=error.status)
    except Invalid as error:
        forms.form.add_error(None, str(error))
        return _sheet(request, operation, forms=forms, status=422)
    messages.success(request, done.sentence)
    return redirect("runs:run", run_id)


def _operation(run_id: uuid.UUID, operation_id: uuid.UUID) -> Operation:
    return get_object_or_404(Operation.objects.select_related("run"), pk=operation_id, run_id=run_id)


@require_safe
@access.required("runs.view_run", "runs.view_payload")
def evidence(
    request: HttpRequest, run_id: uuid.UUID, operation_id: uuid.UUID, evidence_id: uuid.UUID
) -> HttpResponse:
    """A file that came with an answer, to be saved: whatever it holds, no browser shows it as part of this site."""
    access.run_or_404(request.user, run_id, "runs.view_payload")
    one = get_object_or_404(Evidence, pk=evidence_id, run_id=run_id, operation_id=operation_id)
    return HttpResponse(
        bytes(one.body),
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": content_disposition_header(True, hostile.plain(one.name)),
            "X-Content-Type-Options": "nosniff",
        },
    )


class _Forms:
    """The forms of the two answers for one operation; the one that was sent is bound to `data`."""

    def __init__(
        self,
        operation: Operation,
        data: Any = None,
        *,
        happened: bool = True,
        typed: Any = None,
        files: Any = None,
    ) -> None:
        tool = tool_of(operation)
        self.by_reference = tool is not None and tool.from_reference is not None
        given = {name: typed[name] for name in ("reference", "reason") if name in typed} if typed else {}
        initial = with_seen(operation.run, **given)
        yes = data if happened else None
        self.happened = HappenedForm(
            yes,
            files if happened else None,
            initial=initial,
            auto_id="yes_%s",
            reference_is_enough=self.by_reference,
        )
        schema: Mapping[str, Any] = tool.returns.json_schema() if tool else {}
        read: Callable[[Any], Any] = tool.returns.validate_python if tool else lambda value: value
        self.result = SchemaForm(schema, read, yes, label="Result", prefix="result", auto_id="yes_%s")
        no = data if not happened else None
        self.not_happened = NotHappenedForm(no, None if happened else files, initial=initial, auto_id="no_%s")
        self.form: VerbForm = self.happened if happened else self.not_happened

    def arguments(self) -> dict[str, Any] | None:
        """Keyword arguments of the verb, or None where the form that was sent has mistakes."""
        if self.form is self.not_happened or self.by_reference:
            return self.form.arguments() if self.form.is_valid() else None
        # Both are looked at, so that all mistakes are shown at once.
        if not (self.form.is_valid() & self.result.is_valid()):
            return None
        return {**self.form.arguments(), "result": self.result.value}


def _sheet(
    request: HttpRequest,
    operation: Operation,
    *,
    forms: _Forms | None = None,
    typed: Any = None,
    refusal: str = "",
    status: int = 200,
) -> HttpResponse:
    """The page that asks; without forms where there is nothing (more) to answer."""
    run, why_not = operation.run, ""
    try:
        answerable(run)
    except StateMismatch as error:
        why_not = str(error)
    if not why_not and operation.status != OpStatus.PENDING:
        by = f" by {operation.settled_by}" if operation.settled_by else ""
        why_not = f"{operation.name} is not in doubt any more: recorded as {operation.status}{by}"
    proof = None if why_not else services.proof_of(operation)
    sender = operation.intent_worker_id
    worker = Worker.objects.filter(pk=sender, reaped_at__isnull=True).first() if sender else None
    return render(
        request,
        "runs/answer.html",
        {
            **page.head(request, run),
            "operation": operation,
            "no_key": gets_no_key(operation),
            "forms": forms or _Forms(operation, typed=typed),
            "consequence": None if why_not else services.preview_answer_doubt(operation),
            "why_not": why_not,
            "proof": proof,
            "unreaped": worker,
            "refusal": refusal,
            "may_see_payloads": access.may_see_payloads(request.user, run),
            "may_declare": access.everywhere(request.user, "runs.declare_gone"),
            "action": request.path,
            "close": reverse("runs:run", args=[run.pk]),
            "now": clock.now(),
        },
        status=status,
    )


@require_http_methods(["GET", "POST"])
@access.required("runs.declare_gone")
def declare_gone(request: HttpRequest, worker_id: uuid.UUID) -> HttpResponse:
    """State that a worker which nobody reaps is gone for good."""
    form = GoneForm(request.POST if request.method == "POST" else None)
    refusal, status = "", 200
    if request.method == "POST":
        if form.is_valid():
            try:
                worker = services.declare_gone(actor(request), worker_id, **form.cleaned_data)
            except StateMismatch as error:
                refusal, status = str(error), error.status
            else:
                messages.success(
                    request, f"Worker {worker} is recorded as gone, by {worker.gone_by or 'its own host'}."
                )
                return redirect("runs:workers")
        else:
            status = 422
    worker_row = Worker.objects.filter(pk=worker_id).first()
    if worker_row is None:
        raise Http404
    return render(
        request,
        "runs/gone.html",
        {
            "worker": worker_row,
            "consequence": services.preview_declare_gone(worker_row),
            "form": form,
            "refusal": refusal,
            "action": request.path,
            "close": reverse("runs:workers"),
            "now": clock.now(),
        },
        status=status,
    )
