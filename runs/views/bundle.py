"""The support bundle of a run, as a file."""

import os
import uuid

from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.http import require_POST

from runs import access, services
from runs.bundles import bundle
from runs.models import Run
from runs.selectors import PAYLOADS
from runs.views.acting import actor


@require_POST
@access.required("runs.view_run", "runs.view_payload")
def export(request: HttpRequest, run_id: uuid.UUID) -> HttpResponseBase:
    """Send the bundle. Not by GET: it is written into the audit."""
    access.run_or_404(request.user, run_id, "runs.view_payload", rows=Run.objects.defer(*PAYLOADS))
    file = services.export_bundle(actor(request), run_id)
    if file.seek(0, os.SEEK_END) > bundle.IN_MEMORY:
        file.seek(0)
        return FileResponse(file, as_attachment=True, filename=_name(run_id), content_type="application/json")
    # In memory as it is: nothing stays open until the browser has it all.
    with file:
        file.seek(0)
        response = HttpResponse(file.read(), content_type="application/json")
    response.headers["Content-Disposition"] = f'attachment; filename="{_name(run_id)}"'
    return response


def _name(run_id: uuid.UUID) -> str:
    return f"agentops-run-{run_id}.json"
