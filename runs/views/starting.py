"""Start a run: choose a workflow, then fill in a form made from its input model."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import capfirst
from django.views.decorators.http import require_http_methods, require_safe

from runs import access, registry, services
from runs.errors import Conflict, Invalid
from runs.forms import SchemaForm, StartForm
from runs.models import Grant, Run
from runs.views.acting import actor
from runs.workflow import Workflow


@require_safe
@access.required("runs.start_run")
def workflows(request: HttpRequest) -> HttpResponse:
    """Which workflows this person may start, and what each does."""
    theirs = [one for one in registry.workflows() if _may_start(request, one.name)]
    return render(request, "runs/start.html", {"workflows": theirs})


@require_http_methods(["GET", "POST"])
@access.required("runs.start_run")
def start(request: HttpRequest, workflow: str) -> HttpResponse:
    """Start a run of one workflow."""
    definition = _found(request, workflow)
    data = request.POST if request.method == "POST" else None
    form = StartForm(data)
    schema = definition.input.model_json_schema() if definition.input else {}
    given = SchemaForm(schema, definition.validate_input, data, label="Input", prefix="input")
    if request.method == "GET":
        return _page(request, definition, form, given)
    # Both are looked at, so that all mistakes are shown at once.
    if not (form.is_valid() & given.is_valid()):
        return _page(request, definition, form, given, status=422)
    try:
        started = services.start(
            actor(request),
            definition.name,
            given.value,
            start_key=form.cleaned_data["start_key"] or None,
            subject=form.cleaned_data["subject"] or None,
        )
    except Invalid as error:
        form.add_error(None, capfirst(str(error)))
        return _page(request, definition, form, given, status=422)
    except Conflict as error:
        form.add_error("start_key", capfirst(str(error)))
        known = error.existing
        seen = known if known is not None and access.may(request.user, "runs.view_run", known) else None
        return _page(request, definition, form, given, status=error.status, existing=seen)
    named = started.created or access.may(request.user, "runs.view_run", started.run)
    if started.deleted or not named:
        which = f"run {started.run.pk}" if named else "a run that you may not see"
        since = ", which has been deleted since" if started.deleted else ""
        form.add_error(
            "start_key", f"This start key had started {which} before{since}; no second one was started."
        )
        return _page(request, definition, form, given, status=409)
    messages.success(
        request,
        "Started."
        if started.created
        else "This start key had started this run before; no second one was started.",
    )
    return redirect("runs:run", started.run.pk)


def _may_start(request: HttpRequest, workflow: str) -> bool:
    """Whether some run of the workflow may be; of what it is about, the verb asks once that is known."""
    by_subject = any(
        grant.scope == Grant.Scope.SUBJECT for grant in access.scopes(request.user, "runs.start_run")
    )
    return by_subject or access.may(request.user, "runs.start_run", Run(workflow=workflow))


def _found(request: HttpRequest, name: str) -> Workflow:
    try:
        definition = registry.workflow(name)
    except registry.UnknownWorkflow:
        raise Http404 from None
    if not _may_start(request, name):
        if access.may(request.user, "runs.view_run", Run(workflow=name)):
            raise PermissionDenied
        raise Http404
    return definition


def _page(
    request: HttpRequest,
    definition: Workflow,
    form: StartForm,
    given: SchemaForm,
    *,
    status: int = 200,
    existing: Any = None,
) -> HttpResponse:
    context = {"workflow": definition, "form": form, "given": given, "existing": existing}
    return render(request, "runs/start_workflow.html", context, status=status)
